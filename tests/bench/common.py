"""What the benchmarks that run daemons share: where programs are, and the form of a figure."""
import json
import os
import signal
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from cluster import Tools  # noqa: E402  (its place is known only now)


def leave_on_signals():
    """Makes a signal run what `with` and `finally` are for; a second one does not cut them short."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def leave(number, frame):
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


def use_build(build):
    Tools.zerod = f"{build}/daemon/zerod"
    Tools.zeroctl = f"{build}/client/zeroctl/zeroctl"
    Tools.gpt = f"{build}/client/examples/gpt/zerod-gpt"


def figure(name, ratios, **settings):
    """Median and quartiles over the rounds."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"name": name, "repeat": len(ratios), "median_ratio": round(middle, 4),
            "spread": [round(low, 4), round(high, 4)], **settings}


class Output:
    """One line of JSON a figure, in the file of --json if there is one."""

    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8") if path else None

    def add(self, figure_):
        if self.file:
            print(json.dumps(figure_), file=self.file, flush=True)
