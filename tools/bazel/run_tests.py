"""`make test`: builds every target and tests it, then says how many cases ran.

What takes long, or repeats with more workers what others have shown with fewer, is left to `make check`.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys

from tools.bazel.report import TargetResult, read_events, summary

EVENTS = pathlib.Path(".cache/bazel_events.json")
# The C++ tests once more, with AddressSanitizer and UndefinedBehaviorSanitizer.
SANITIZERS = "sanitizers"
# Without the first, targets that are left out would count as not run. The last two are pytest's.
NOT_THOROUGH = ["--build_tests_only", "--test_tag_filters=-thorough"]
NOT_THOROUGH += ["--test_arg=-m", "--test_arg=not thorough"]
# Seconds that a target may take, instead of what its size allows: suites of eight workers share two cores.
THOROUGH = ["--test_timeout=3600"]


def run(*options: str) -> tuple[int, list[TargetResult] | None]:
    """`bazel test options //...`: (exit code, results or None where no test was reached)."""
    EVENTS.unlink(missing_ok=True)
    # --keep_going: one broken target must not hide the results of the others.
    command = ["bazel", "test", "--keep_going", f"--build_event_json_file={EVENTS}", *options]
    code = subprocess.call([*command, "//..."])
    return code, read_events(EVENTS.read_text().splitlines()) if EVENTS.exists() else None


def main() -> int:
    """Returns 0 when everything builds and every case passes, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--thorough", action="store_true", help="all tests: `make check`")
    thorough = parser.parse_args().thorough
    build = subprocess.call(["bazel", "build", "--keep_going", "//..."])
    test, results = run(*(THOROUGH if thorough else NOT_THOROUGH))
    sanitized, more = run(f"--config={SANITIZERS}")
    if results is None or more is None:
        print("Bazel stopped before any test: see its message above.", file=sys.stderr)
        return 1
    results += [dataclasses.replace(r, label=f"{r.label} ({SANITIZERS})") for r in more]
    print("\n" + summary(results))
    if build:
        print("bazel build //... failed: see its message above.", file=sys.stderr)
    return int(bool(build or test or sanitized or any(result.failed for result in results)))


if __name__ == "__main__":
    sys.exit(main())
