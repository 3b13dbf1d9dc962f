#!/usr/bin/env python3
"""bench-load [--repeat N] [--json FILE] [--mib N] [--directory DIRECTORY]

How fast `zeroctl import` loads a safetensors file that no cache has into the shards of one node, from its start to its
end.  Ratios are seconds of a limit over seconds of loading.

  direct   a direct read (O_DIRECT) of the same file; the aim is 0.9
  large    the same into large pages: the most that the disk gives, where it does not merge requests of small pages
  smaller  the slower one of that and of loading the file when it is in the page cache: then the owner bounds, not the disk

A 16-bit file is widened: its planes take three times its bytes.  A file's pages are dropped before it is read and before
it is loaded.  Types take turns, and so do reading, loading and loading again: what else the machine does meets all alike.
Median and quartiles.
"""
import argparse
import contextlib
import json
import math
import mmap
import os
import sys
import tempfile
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from checkpointing import write_safetensors  # noqa: E402
from cluster import Cluster, Tools, group, tensor  # noqa: E402

BUILD = "@BUILD@"
AIM = 0.9
BLOCKS = 16
PIECE = 8 << 20  # of a direct read
TYPES = {"fp32": ("F32", 4), "bf16": ("BF16", 2), "fp16": ("F16", 2)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--mib", type=int, default=512, help="of each file")
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to read from")
    return parser.parse_args()


def layout(dtype, mib):
    """Blocks of two matrices, a bias and a norm."""
    columns = (mib << 20) // BLOCKS // TYPES[dtype][1] // 4 // 2048
    return [group(f"b{i}", tensor(f"b{i}.up", 2048, 3 * columns), tensor(f"b{i}.norm", 2048),
                  tensor(f"b{i}.down", columns, 2048), tensor(f"b{i}.bias", 8192), dtype=dtype) for i in range(BLOCKS)]


def write(path, groups, dtype):
    word, size = TYPES[dtype]
    header, at = {}, 0
    for t in (t for g in groups for t in g["tensors"]):
        end = at + size * math.prod(t["shape"])
        header[t["name"]] = {"dtype": word, "shape": t["shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    write_safetensors(path, text + b" " * (-len(text) % 8))
    values = bytes(range(60)) * (PIECE // 60)  # no NaN of any type
    with open(path, "ab") as f:
        for begin in range(0, at, len(values)):
            f.write(values[:at - begin])
        f.flush()
        os.fsync(f.fileno())


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(path, memory, flags=0):
    fd, at, size = os.open(path, os.O_RDONLY | flags), 0, os.path.getsize(path)
    while at < size:
        at += os.preadv(fd, [memory], at)
    os.close(fd)


def seconds(work, *rest):
    begin = time.monotonic()
    work(*rest)
    return time.monotonic() - begin


def round_of(daemon, job, path, small, large):
    taken = {}
    for name, work, *rest in (("direct", read, path, small, os.O_DIRECT), ("large", read, path, large, os.O_DIRECT),
                              ("load", daemon.ctl, "import", job, path)):
        drop(path)
        taken[name] = seconds(work, *rest)
    read(path, small)  # a load leaves nothing in the page cache
    return {**taken, "cached": seconds(daemon.ctl, "import", job, path)}


def rounds_of_types(options):
    rounds = {dtype: [] for dtype in TYPES}
    with tempfile.TemporaryDirectory(dir=options.directory) as d, Cluster(1) as c, \
            contextlib.closing(mmap.mmap(-1, PIECE)) as small, \
            contextlib.closing(mmap.mmap(-1, PIECE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) as large:
        large.madvise(mmap.MADV_HUGEPAGE)
        for dtype in TYPES:
            groups = layout(dtype, options.mib)
            c.ranks(dtype, groups, [0], hold=1, push=1, timeout_ms=300000)
            write(f"{d}/{dtype}", groups, dtype)
        for i in range(max(2, options.repeat) + 1):
            for dtype in TYPES:
                r = round_of(c[0], dtype, f"{d}/{dtype}", small, large)
                if i == 0:  # touches the planes
                    continue
                rounds[dtype].append(r)
                print(f"{dtype}:", *(f"{k} {os.path.getsize(f'{d}/{dtype}') / s / 1e6:.0f} MB/s;" for k, s in r.items()),
                      flush=True)
    return rounds


def figures(dtype, rounds, options, output):
    for limit, of in (("direct", lambda r: r["direct"]), ("large", lambda r: r["large"]),
                      ("smaller", lambda r: max(r["direct"], r["cached"]))):
        f = common.figure(f"load, {dtype}, {limit}", [of(r) / r["load"] for r in rounds], mib=options.mib,
                          **({"aim": AIM} if limit == "direct" else {}))
        output.add(f)
        print(f"{f['name']}: ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}", flush=True)


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    Tools.actor = f"{BUILD}/tests/support/actor"
    output = common.Output(options.json)
    for dtype, rounds in rounds_of_types(options).items():
        figures(dtype, rounds, options, output)


if __name__ == "__main__":
    main()
