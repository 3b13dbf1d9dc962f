"""The tables of comparisons: a section a case, each with its date and machine.

RESULTS.md keeps one section of each case.  A run replaces the sections of its cases.
"""
import datetime
import os
import platform
import textwrap

WIDTH = 110

HEAD = """# Side by side

What `tests/compare/run.sh --write` last measured, each case by itself: `tests/compare/run.sh --help`.
"""


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        name = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{datetime.date.today()}, {os.cpu_count()} cores of {name}"


class Section:
    def __init__(self, name, head, numbers=()):
        """numbers: columns that are aligned to the right."""
        self.name, self.head, self.numbers, self.rows, self.notes = name, head, numbers, [], []
        self.wrong = False  # zerod failed, or computed something else
        self.about = None  # in place of what the case says

    def row(self, *cells):
        self.rows.append([str(c) for c in cells])

    def text(self, about, versions):
        rule = ["--:" if h in self.numbers else "---" for h in self.head]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.head, rule, *self.rows)]
        about = [textwrap.fill(p, WIDTH, break_on_hyphens=False) for p in about.strip().split("\n\n")]
        parts = [f"## {self.name}", *about, f"{machine()}; {versions}.", "\n".join(lines),
                 "\n".join(textwrap.fill(n, WIDTH, break_on_hyphens=False) for n in self.notes)]
        return "\n\n".join(filter(None, parts))


def write(path, section, text, in_part):
    """Puts a section in the place of the last one of its name; measured in part, only of one that has no more rows."""
    kept = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            kept = {part.split("\n", 1)[0]: part.rstrip() for part in f.read().split("\n## ")[1:]}
    rows = kept.get(section.name, "").count("\n| ") - 2
    if in_part and rows > len(section.rows):
        raise SystemExit(f"{path} keeps its section {section.name}, which has {rows} rows and not {len(section.rows)}: "
                         "measure the whole case, or take the section away")
    kept[section.name] = text.removeprefix("## ")
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write("\n## ".join([HEAD, *(f"{part}\n" for part in kept.values())]))
    os.replace(path + ".new", path)
