"""Shared by tests of checkpoints: a directory for them, training, the files in a directory, and safetensors files."""
import json
import os
import shutil
import tempfile

import cluster


class Place:
    """A directory for checkpoints, deleted at the end of the block.  Not in memory: states lie there, and a daemon
    refuses to write checkpoints beside its states."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="zerod-ckpt-", dir="/var/tmp")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


LAYOUT = cluster.small_layout(blocks=3, width=120)
BIG = cluster.small_layout(blocks=4, width=700)
TRAIN = {"sets": cluster.SETS, "clip": 0.5, "seed": 11}


def start_training(ranks, steps, **fields):
    for a in ranks:
        a.start("train", steps=steps, **{**TRAIN, **fields})


def train(ranks, steps, **fields):
    start_training(ranks, steps, **fields)
    return cluster.finish_all(ranks)


def planes(c, job="job"):
    return c.checksum(job)["planes"]


def whole(directory):
    return sorted(n for n in os.listdir(directory) if not n.startswith("."))


def partial(directory):
    return sorted(n for n in os.listdir(directory) if n.startswith("."))


def end(ranks):
    """Closes the ranks' sessions."""
    for a in ranks:
        a.do("close")
        a.end()


def taken(directory, nodes=2, steps=2, layout=None):
    """Takes a checkpoint in a cluster of its own: (path, checksum)."""
    with cluster.Cluster(nodes) as c:
        ranks = c.ranks("job", layout or LAYOUT, [i % nodes for i in range(2)], hold=2, push=2)
        train(ranks, steps)
        path = c[0].ctl("checkpoint", "job", directory)["path"]
        return path, c.checksum("job")


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return header, data[8 + length:]


def write_safetensors(path, header, body=b"", length=None):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    with open(path, "wb") as f:
        f.write((len(text) if length is None else length).to_bytes(8, "little") + text + body)
