"""The table of the papers' claims: a row each, with the value of the formula and the one that was counted.

A row holds if the counted value is the formula's within 1 %, unless the row says by how much it may differ.  Where
the formula says 0, the ratio is that of the counted value to something that the row names.
"""
import datetime
import json
import os
import platform

HEAD = ["source", "claim", "formula", "by formula", "counted", "ratio", "holds", "note"]


class Table:
    def __init__(self, rows=()):
        self.rows = list(rows)

    def row(self, source, claim, formula, expected, counted, least=0.99, most=1.01, of=None, note=""):
        """least, most: of counted / expected; of: in place of expected, where the formula says 0."""
        whole = of or expected
        ratio = counted / whole if whole else float(counted != 0)
        self.rows.append({"source": source, "claim": claim, "formula": formula, "expected": expected,
                          "counted": counted, "ratio": ratio, "holds": least <= ratio <= most, "note": note})

    def failed(self, source, claim, why):
        """What should have been counted raised an error."""
        self.rows.append({"source": source, "claim": claim, "formula": "", "expected": None, "counted": None,
                          "ratio": None, "holds": False, "note": why})

    def cells(self):
        for r in self.rows:
            yield [r["source"], r["claim"], r["formula"], number(r["expected"]), number(r["counted"]),
                   "" if r["ratio"] is None else f"{r['ratio']:.4f}", "yes" if r["holds"] else "no", r["note"]]

    def text(self):
        lines = [HEAD, ["---"] * 3 + ["--:"] * 3 + ["---"] * 2, *self.cells()]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def summary(self):
        yes = sum(r["holds"] for r in self.rows)
        return f"claims: {yes} yes, {len(self.rows) - yes} no"

    def dump(self, path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(self.rows, f)

    def load(self, path):
        with open(path, encoding="utf-8") as f:
            self.rows += json.load(f)


def number(x):
    return "" if x is None else f"{x:,.0f}" if abs(x) >= 100 or x == int(x) else f"{x:.3g}"


def machine():
    """The date, and what this machine computes with."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores of {model}"
