"""Named cases of an integration test.

Functions decorated with @case run one after the other; arguments after the programs' paths choose
cases by the beginning of their names, and K/N chooses the K-th of N parts of them.  $TESTS_AGAIN=K/N does that in
suites of which another tree runs every case: $TESTS_TWICE is set.  $TESTS_SHARE=N runs each N-th case of what is
chosen.  A case that raises Skip counts as skipped and says why, one that raises
anything else has failed.  The last line has the form of Criterion's, so that tests/run.sh counts cases
and not files.
"""
import os
import re
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# daemons would take them for options
for variable in [name for name in os.environ if name.startswith("ZEROD_")]:
    del os.environ[variable]

from cluster import Tools  # noqa: E402

cases = []


class Skip(Exception):
    """This machine or build cannot run the case."""


def case(function):
    cases.append(function)
    return function


def cases_of(values, name="{}"):
    """One case for each value."""
    def decorate(function):
        for value in values:
            def run(value=value):
                function(value)
            run.__name__ = f"{function.__name__}_" + name.format(value)
            cases.append(run)
        return function
    return decorate


def run_case(function):
    begin = time.monotonic()
    try:
        function()
        result = "PASS"
    except Skip as why:
        result = "SKIP"
        print(f"# {why}")
    except Exception:  # pylint: disable=broad-except
        result = "FAIL"
        print("".join("# " + line for line in traceback.format_exc().splitlines(True)))
    print(f"[{result}] {function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    return result


def choose(arguments):
    names = [a for a in arguments if "/" not in a]
    chosen = [f for f in cases if not names or any(f.__name__.startswith(n) for n in names)]
    for part in [*arguments, os.environ.get("TESTS_TWICE") and os.environ.get("TESTS_AGAIN") or ""]:
        if (match := re.fullmatch(r"(\d+)/(\d+)", part)) and chosen:
            chosen = chosen[(int(match[1]) - 1) % min(int(match[2]), len(chosen))::int(match[2])]
    return chosen[::int(os.environ.get("TESTS_SHARE", 1))]


def main():
    if len(sys.argv) < 5:
        sys.exit(f"usage: {sys.argv[0]} ZEROD ZEROCTL ACTOR GPT [CASE...] [K/N]")
    Tools.zerod, Tools.zeroctl, Tools.actor, Tools.gpt = sys.argv[1:5]
    chosen = choose(sys.argv[5:])
    results = [run_case(f) for f in chosen]
    passed, failed = results.count("PASS"), results.count("FAIL")
    print(f"Synthesis: Tested: {passed + failed} | Passing: {passed} | Failing: {failed} | Crashing: 0")
    sys.exit(1 if failed or not chosen else 0)
