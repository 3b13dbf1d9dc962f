#!/usr/bin/env python3
"""Counts the tests of one build tree, for run.sh.

usage: summary.py TREE REPORTS COUNTS LOG...

TREE is the tree's name, REPORTS the directory of the sanitizers' reports, each LOG a
testlog.json of meson (if absent, none of its tests ran).  Prints a line for each suite, of each failed
test's output the end and what stands before each "[FAIL]", the skipped tests, the slowest tests, and those that came
near their limit; writes "passed failed skipped" to COUNTS.

Rule: a test that prints Criterion's summary counts as the tests in it, any other as one; a test that
meson calls failed counts as at least one failure, whatever its summary says.  A limit ends what hangs: it is
at least ten times what the test takes on a quiet machine.  run.sh allows three times the limit, so it names what took
more than a third of it.  That is no failure: the machine may be busy.
"""
import json
import os
import re
import sys

SYNTHESIS = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+) \| Crashing: (\d+)")
SKIPPED = re.compile(r"^\[SKIP\] *(.*)$", re.M)
CPU = re.compile(r"^# ([\d.]+) s of a CPU$", re.M)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
TAIL = 60  # lines: of an output, and of what a failed case says
SLOWEST = 20
MOST = 300  # lines, after which no further case is shown
NEAR = 3  # a part of the limit


class Suite:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.seconds = 0.0


def read(path):
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            yield json.loads(line)


def limits(log):
    """Seconds that meson.build allows each test of a log's build tree."""
    path = os.path.join(os.path.dirname(log), "..", "meson-info", "intro-tests.json")
    with open(path, encoding="utf-8") as tests:
        return {f"{suite} / {test['name']}": test["timeout"] for test in json.load(tests) for suite in test["suite"]}


def near_limit(test, limit):
    took = test.get("duration") or 0
    return [f"{test['name']}: {took:.0f} s of {limit} s"] if limit and took > limit / NEAR else []


def names_of(name):
    """Suite and test of "project:suite / test"."""
    suite, slash, test = name.rpartition(" / ")
    return (suite.partition(":")[2] or suite, test) if slash else ("other", name)


def output(test):
    return ESCAPE.sub("", (test.get("stdout") or "") + (test.get("stderr") or ""))


def cpu(test):
    """Seconds of CPUs that the test says it took (support/alone.py)."""
    said = CPU.findall(output(test))
    return float(said[-1]) if said else 0.0


def count(test):
    """Passed, failed, names of the skipped."""
    result, text = test["result"], output(test)
    if result == "SKIP":
        return 0, 0, [": ".join([test["name"], *SKIPPED.findall(text)])]
    bad = result not in ("OK", "EXPECTEDFAIL")
    told = SYNTHESIS.findall(text)
    if not told:
        return int(not bad), int(bad), []
    _, passing, failing, crashing = map(int, told[-1])
    skipped = [f"{test['name']}: {name}" for name in SKIPPED.findall(text)]
    failed = failing + crashing
    return passing, max(failed, 1) if bad else failed, skipped


def why_failed(text):
    """The lines that tell why a test failed; the cases that did not are left out."""
    lines = [line for line in text.splitlines() if not line.startswith(("[PASS]", "[SKIP]"))]
    shown = set(range(len(lines))[-TAIL:])
    for i, line in enumerate(lines):
        if line.startswith("[FAIL]") and len(shown) < MOST:
            shown.update(range(max(0, i + 1 - TAIL), i + 1))
    before = -1
    for i in sorted(shown):
        if i > before + 1:
            yield "..."
        yield lines[i]
        before = i


def show_failure(tree, suite, test):
    print(f"{tree:8} FAILED {suite} {test['name']}: {test['result'].lower()}, exit status {test.get('returncode')}")
    for line in why_failed(output(test)):
        print("        " + line)


def show_reports(tree, directory):
    names = sorted(os.listdir(directory))
    for name in names:
        print(f"{tree:8} FAILED report of a sanitizer: {name}")
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as report:
            for line in report.read().splitlines()[:TAIL]:
                print("        " + line)
    return len(names)


def main(tree, reports, counts, *logs):
    suites, skipped, near, took = {}, [], [], []
    for log in logs:
        allowed = limits(log)
        for test in read(log):
            limit = allowed.get(test["name"], 0)
            suite_name, test["name"] = names_of(test["name"])
            suite = suites.setdefault(suite_name, Suite())
            passed, failed, names = count(test)
            suite.passed += passed
            suite.failed += failed
            suite.skipped += len(names)
            suite.seconds += test.get("duration") or 0
            skipped += names
            took.append((test.get("duration") or 0, cpu(test), test["name"]))
            near += near_limit(test, limit)
            if failed:
                show_failure(tree, suite_name, test)
    for name, s in sorted(suites.items()):
        print(f"{tree:8} {name:14} {s.passed:5} passed {s.failed:4} failed {s.skipped:4} skipped {s.seconds:8.1f} s")
    for name in skipped:
        print(f"{tree:8} skipped {name}")
    for seconds, used, name in sorted(took, reverse=True)[:SLOWEST]:
        print(f"{tree:8} slow {name:25} {seconds:6.1f} s, {used:6.1f} s of a CPU")
    print(f"{tree:8} all {len(took)} tests {sum(t[0] for t in took):6.0f} s, {sum(t[1] for t in took):6.0f} s of a CPU")
    for name in near:
        print(f"{tree:8} near its limit {name}")
    found = show_reports(tree, reports)
    with open(counts, "w", encoding="utf-8") as out:
        print(sum(s.passed for s in suites.values()), sum(s.failed for s in suites.values()) + found,
              len(skipped), file=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
