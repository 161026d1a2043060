"""`make test`: builds and tests every target, then says how many cases ran."""

import pathlib
import subprocess
import sys

from tools.bazel.report import read_events, summary

EVENTS = pathlib.Path(".cache/bazel_events.json")


def main() -> int:
    """Returns 0 when everything builds and every case passes, else 1."""
    EVENTS.unlink(missing_ok=True)
    # --keep_going: one broken target must not hide the results of the others.
    build = subprocess.call(["bazel", "build", "--keep_going", "//..."])
    test = subprocess.call(
        ["bazel", "test", "--keep_going", f"--build_event_json_file={EVENTS}", "//..."]
    )
    if not EVENTS.exists():
        print("Bazel stopped before any test: see its message above.", file=sys.stderr)
        return 1
    results = read_events(EVENTS.read_text().splitlines())
    print("\n" + summary(results))
    if build:
        print("bazel build //... failed: see its message above.", file=sys.stderr)
    return int(bool(build or test or any(result.failed for result in results)))


if __name__ == "__main__":
    sys.exit(main())
