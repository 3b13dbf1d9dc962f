#!/usr/bin/env python3
"""usage: main.py BUILD PYTHON [--write] [CASE[:PART,...]]...    for tests/compare/run.sh"""
import argparse
import importlib
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [f"{ROOT}/tests/support", f"{ROOT}/tests/bench"]
import harness  # noqa: E402 F401  it takes zerod's variables out of the environment
import common  # noqa: E402
from cluster import Tools  # noqa: E402
from systems import deepspeed_env  # noqa: E402

import table  # noqa: E402

CASES = ("fire", "uneven", "hangs", "growth", "steps", "costs", "memory", "paths")


class Options:
    """What a case knows of the run."""

    def __init__(self, build, python):
        self.build, self.root, self.python, self.only = build, ROOT, python, ()
        self.deepspeed = None

    def python_of(self, system):
        if not system.startswith("deepspeed"):
            return self.python
        if not self.deepspeed:
            self.deepspeed = deepspeed_env.ensure(self.python)
        return self.deepspeed

    def environment(self):
        """Of a rank's process: one thread, gloo over loopback."""
        return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu",
                "PYTHONPATH": f"{self.root}/client/python", "ZEROD_LIBRARY": f"{self.build}/client/lib/libzero.so.0"}

    @staticmethod
    def say(text):
        print(f"# {text}", file=sys.stderr, flush=True)

    def versions(self):
        torch = deepspeed_env.call("ask for a version", self.python, "-c", "import torch; print(torch.__version__)")
        return f"PyTorch {torch.strip()}, {deepspeed_env.DEEPSPEED.replace('==', ' ')}"


def split(parser, case):
    """The module of a case, and its parts.  A number at a part's end is N in PARTS, if the part is not there itself."""
    name, _, parts = case.partition(":")
    if name not in CASES:
        parser.error(f"no such case: {name}; there are {', '.join(CASES)}")
    module, parts = importlib.import_module(name), tuple(parts.split(",")) if parts else ()
    for part in parts:
        if part not in module.PARTS and re.sub(r"\d+$", "N", part) not in module.PARTS:
            parser.error(f"{name}: no such part: {part}; there are {', '.join(module.PARTS)}")
    return module, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("python")
    parser.add_argument("cases", nargs="*", metavar="CASE[:PART,...]")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_intermixed_args()  # options anywhere
    build = os.path.abspath(arguments.build)
    common.leave_on_signals()
    Tools.zerod, Tools.zeroctl = f"{build}/daemon/zerod", f"{build}/client/zeroctl/zeroctl"
    options = Options(build, arguments.python)
    if arguments.write and not arguments.cases:
        parser.error("--write keeps the cases that are named: name them")
    wrong = False
    for module, parts in [split(parser, case) for case in arguments.cases or CASES]:
        options.only = parts if arguments.cases else getattr(module, "SHORT", ())
        section = module.measure(options)
        wrong = wrong or section.wrong
        text = section.text(section.about or getattr(module, "ABOUT", module.__doc__), options.versions())
        print(text, "\n", flush=True)
        if arguments.write:
            table.write(f"{ROOT}/tests/compare/RESULTS.md", section, text, bool(parts))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
