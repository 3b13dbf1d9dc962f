"""L2L's eager parameter server (arXiv 2002.05645): what is updated when a step's last gradient comes."""
import re

from cluster import Cluster, group, tensor, until

SETS = [[1e-3, 0.9, 0.999, 1e-8, 0.01]]


def updated(daemon):
    """Blocks that the owner has updated ahead of the decision, by its log."""
    return len(set(re.findall("has updated ahead group '([^']*)'", daemon.log())))


def fill(table, quick):
    blocks = 24 if quick else 96
    layout = [group(f"b{i}", tensor(f"b{i}.w", 64, 512), eager=True) for i in range(blocks)]
    with Cluster(2, log_level="debug") as c:
        ranks = c.ranks("eager", layout, [0, 1], hold=1, push=-1)
        for a in ranks:
            a.do("ahead", sets=SETS)
            for g in range(blocks - 1, 0, -1):
                a.do("grad", group=g)
                a.do("push", group=g)
        for d in c.daemons:
            until(lambda d=d: updated(d) == blocks - 1, what="the updates of all blocks but the first")
            table.row("L2L", f"eager server, {blocks} blocks: updated by owner {d.name} when the last gradient comes",
                      "L - 1", blocks - 1, updated(d))
