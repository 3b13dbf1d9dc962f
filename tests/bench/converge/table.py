"""The table of tests/bench/converge: a row a configuration, made of results and of rows that the page has already.

A row is {"bytes": of the states a parameter, "losses": [of each seed in order, None: not run], "date": "YYYY-MM-DD"}.
"""
import itertools
import statistics

from configurations import CONFIGURATIONS, REFERENCE

HEAD = ["configuration", "bytes a parameter", "validation loss of each seed", "mean", "difference", "verdict", "date"]
RULE = ["---", "--:", "---", "--:", "--:", "---", "---"]


def known(losses):
    return [x for x in losses if x is not None]


def spread(rows):
    """Of the reference's seeds; None if fewer than two have run."""
    losses = known(rows.get(REFERENCE, {"losses": []})["losses"])
    return max(losses) - min(losses) if len(losses) > 1 else None


def difference(rows, name):
    """The mean over the seeds that the reference has, too; None without any."""
    pairs = zip(rows[name]["losses"], rows.get(REFERENCE, {"losses": []})["losses"])
    found = [a - b for a, b in pairs if a is not None and b is not None]
    return statistics.mean(found) if found else None


def verdict(found, limit):
    if found is None or limit is None:
        return "-"
    return "within" if abs(found) <= limit else "outside"


def cells(rows, name):
    row, found = rows[name], difference(rows, name)
    compared = ["-" if found is None else f"{found:+.4f}", verdict(found, spread(rows))]
    return [name, f"{row['bytes']:.2f}", ", ".join("-" if x is None else f"{x:.4f}" for x in row["losses"]),
            f"{statistics.mean(known(row['losses'])):.4f}", *(["", "reference"] if name == REFERENCE else compared),
            row["date"]]


def text(rows, missing):
    """missing: why a configuration has no row, by name."""
    lines = [HEAD, RULE]
    for name in CONFIGURATIONS:
        if name in rows:
            lines.append(cells(rows, name))
        elif name in missing:
            lines.append([name, missing[name], *[""] * (len(HEAD) - 2)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parse(page):
    """The rows of a page that text() wrote."""
    rows = {}
    for line in page.splitlines():
        said = [cell.strip() for cell in line.strip("|").split("|")]
        if len(said) == len(HEAD) and said[0] in CONFIGURATIONS and said[2]:
            losses = [None if x == "-" else float(x) for x in said[2].split(", ")]
            rows[said[0]] = {"bytes": float(said[1]), "losses": losses, "date": said[-1]}
    return rows


def merged(old, new):
    """The rows of both; a seed that has no new result keeps the old one."""
    rows = {**old, **new}
    for name in old.keys() & new.keys():
        losses = itertools.zip_longest(new[name]["losses"], old[name]["losses"])
        rows[name] = {**new[name], "losses": [b if a is None else a for a, b in losses]}
    return rows
