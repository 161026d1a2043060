"""Reads what Bazel reports of a test run: cases, not only targets."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import urllib.parse
from collections.abc import Iterable
from xml.etree import ElementTree


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """Cases of one test target, as its JUnit report counts them."""

    label: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    cached: bool


def count_cases(xml: str) -> tuple[int, int, int]:
    """Returns (passed, failed, skipped) of a JUnit report by pytest, GoogleTest or Bazel."""
    passed = failed = skipped = 0
    for case in ElementTree.fromstring(xml).iter("testcase"):
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            failed += 1
        elif "skipped" in tags or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def _target_result(label: str, result: dict) -> TargetResult:
    outputs = {output["name"]: output for output in result.get("testActionOutput", [])}
    passed = failed = skipped = 0
    if "test.xml" in outputs:
        path = pathlib.Path(urllib.parse.urlparse(outputs["test.xml"]["uri"]).path)
        try:
            passed, failed, skipped = count_cases(path.read_text(errors="replace"))
        except (ElementTree.ParseError, FileNotFoundError):
            pass  # a test that was killed leaves half a report; the status below counts it
    if result["status"] not in ("PASSED", "FLAKY") and not failed:
        failed = 1  # it died outside of a case: import error, crash at exit, limit of time
    return TargetResult(
        label=label,
        passed=passed,
        failed=failed,
        skipped=skipped,
        seconds=int(result.get("testAttemptDurationMillis", 0)) / 1000,
        cached=bool(result.get("cachedLocally")),
    )


def read_events(lines: Iterable[str]) -> list[TargetResult]:
    """Returns the results in a build event file (`--build_event_json_file`), by label.

    A target that did not build, or was not run, counts as one failed case.
    """
    results: dict[str, TargetResult] = {}
    expected: set[str] = set()
    for event in map(json.loads, lines):
        identity = event["id"]
        if "targetConfigured" in identity and "testSize" in event.get("configured", {}):
            expected.add(identity["targetConfigured"]["label"])
        if "testResult" in identity and "testResult" in event:
            label = identity["testResult"]["label"]
            results[label] = _target_result(label, event["testResult"])
    for label in expected - results.keys():
        results[label] = TargetResult(label, 0, 1, 0, 0.0, False)
    return sorted(results.values(), key=lambda result: result.label)


def summary(results: list[TargetResult]) -> str:
    """Returns one line per target and, last, `N passed, M failed` in cases."""
    lines = []
    for r in results:
        verdict = "FAIL" if r.failed else "ok"
        time = "cached" if r.cached else f"{r.seconds:.1f} s"
        lines.append(f"{verdict:4} {r.label}: {_counts(r.passed, r.failed, r.skipped)} ({time})")
    skipped = sum(r.skipped for r in results)
    if skipped:
        lines.append(f"{skipped} skipped; bazel-testlogs/.../test.log say why")
    lines.append(_counts(sum(r.passed for r in results), sum(r.failed for r in results)))
    return "\n".join(lines)


def _counts(passed: int, failed: int, skipped: int = 0) -> str:
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")
