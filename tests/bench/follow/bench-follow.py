#!/usr/bin/env python3
"""bench-follow [--repeat N] [--json FILE] [--blocks N] [--away] [--python FILE]

How long after a step other processes have its parameters, and what that costs the trainers.  A job of 124M parameters in
bf16 (--blocks 12, GPT-2's shapes) on one node steps again and again, with a second of computing in between.

- visible: from the moment at which the trainer has fetched all groups of the new version until the last of four readers
  in other processes holds it; over the same with a file in memory: the trainer writes all bytes and renames the file,
  and one other process reads them.
- gloo: the same over a broadcast of as many bytes from rank 0 to one other process, which waits for it on loopback
  (torch.distributed).  FILE is a python that has PyTorch ($TESTS_PYTHON); without one this figure is left out.
- steps: the time of a step, computing included, with four readers that follow, over the same without.
- bytes: what a version takes to another node that has the one before, over the entropy of the changes (which values
  change, and by how many units in the last place), at several learning rates of AdamW; not with --away.
With --away the readers are on a second node, which has no shards.  Rounds go in turn; median and quartiles over rounds.
"""
import argparse
import array
import collections
import ctypes
import math
import multiprocessing
import operator
import os
import random
import statistics
import subprocess
import sys
import time
import zlib

sys.path.insert(0, "@SOURCE@/tests/bench")
sys.path.insert(0, "@SOURCE@/client/python")
os.environ.setdefault("ZEROD_LIBRARY", "@BUILD@/client/lib/libzero.so.0")
import common  # noqa: E402  (its place is known only now)
import zerod  # noqa: E402
from cluster import Cluster  # noqa: E402
from ports import free_ports  # noqa: E402

WIDTH, VOCABULARY, CONTEXT = 768, 50257, 1024
READERS = 4
RATES, SETTLE, MEASURED = (1e-6, 3e-6, 1e-5, 1e-4, 3e-4), 6, 3  # learning rates, and steps at each
WAIT_S = 120
fork = multiprocessing.get_context("fork")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--away", action="store_true")
    parser.add_argument("--python", default=os.environ.get("TESTS_PYTHON") or sys.executable)
    return parser.parse_args()


def model(blocks):
    layout = zerod.Layout()
    layout.tensor(layout.group("embedding", "bf16"), "wte", (VOCABULARY + CONTEXT, WIDTH), init="normal", value=0.02)
    for i in range(blocks):
        group = layout.group(f"block{i}", "bf16")
        for name, rows in (("qkv", 3 * WIDTH), ("out", WIDTH), ("up", 4 * WIDTH), ("down", 4 * WIDTH)):
            layout.tensor(group, f"h.{i}.{name}", (rows, WIDTH), init="normal", value=0.02)
    return layout


def compute(memory=bytes(1 << 20)):
    """About a second of a CPU, always the same work."""
    for _ in range(1000):
        zlib.crc32(memory)


def trainer(socket, blocks, orders):
    """Answers each order: "step" with (begin, end, version), "file" with the time at which the bytes were there."""
    layout = model(blocks)
    with zerod.connect("work", 0, 1, socket=socket, timeout=WAIT_S) as client:
        client.attach(layout, hold_groups=zerod.ALL, push_groups=zerod.ALL, grad_dtype="bf16")
        content = bytearray(sum(layout.group_elements(g) * 2 for g in range(layout.groups)))
        orders.send(len(content))
        while (order := orders.recv()) != "end":
            begin = time.monotonic()
            if order == "step":
                compute()
                for g in reversed(range(layout.groups)):
                    address = client.grad(g)
                    ctypes.memset(address, 0x3c, layout.group_elements(g) * 2)
                    client.push(g, last=True)
                version = client.step([zerod.AdamWSet(lr=1e-5)]).version
                for g in range(layout.groups):  # the update is over when the trainer itself has all
                    client.fetch(g)
                end = time.monotonic()
                for g in range(layout.groups):
                    client.release(g)
                orders.send((begin, end, version))
                continue
            with open(order + ".new", "wb") as f:
                f.write(content)
            os.rename(order + ".new", order)
            orders.send((begin, time.monotonic(), 0))


def reader(socket, told):
    """Tells (version, time) of each version, until the process is killed."""
    with zerod.follow("work", socket=socket, timeout=WAIT_S) as job:
        for weights in job:
            with weights:
                told.send((weights.version, time.monotonic()))


def file_reader(path, size, told):
    content = bytearray(size)
    told.send(0)
    while True:
        while not os.path.exists(path):
            time.sleep(0.0005)
        with open(path, "rb") as f:
            f.readinto(content)
        now = time.monotonic()
        os.unlink(path)
        told.send(now)


class Gloo:
    """Two ranks that broadcast, each a process of its own."""

    RANK = """
import sys, time, torch, torch.distributed as d
rank, port, size = map(int, sys.argv[1:])
d.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
bytes_ = torch.full((size,), rank, dtype=torch.uint8)
for line in sys.stdin:
    begin = time.monotonic()
    d.broadcast(bytes_, 0)
    print(begin, time.monotonic(), flush=True)
"""

    def __init__(self, python, size):
        port, = free_ports(1)
        self.ranks = [subprocess.Popen([python, "-c", self.RANK, str(r), str(port), str(size)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
                      for r in range(2)]

    def broadcast(self):
        """Seconds from rank 0's begin until rank 1 has the bytes."""
        for rank in reversed(self.ranks):
            print("go", file=rank.stdin, flush=True)
            time.sleep(0.1)  # the other one waits
        (begin, _), (_, end) = (map(float, rank.stdout.readline().split()) for rank in self.ranks)
        return end - begin

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(WAIT_S)


class Started:
    """A process and its end of a pipe."""

    def __init__(self, target, *parameters):
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=target, args=(*parameters, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, order):
        self.pipe.send(order)
        return self.hear()

    def hear(self):
        if not self.pipe.poll(WAIT_S):
            raise RuntimeError("no answer")
        return self.pipe.recv()

    def end(self):
        self.process.kill()
        self.process.join()


def visible(trainer_, readers):
    """One step: its seconds, and those until every reader has its version."""
    begin, end, version = trainer_.ask("step")
    last = 0
    for r in readers:
        seen, at = r.hear()
        while seen < version:
            seen, at = r.hear()
        last = max(last, at)
    return end - begin, max(last - end, 0)


def run(options, c, output):
    path = f"{c.directory}/weights"
    work = Started(trainer, c[0].socket, options.blocks)
    size = work.hear()
    file = Started(file_reader, path, size)
    file.hear()
    latencies, files, ratios, broadcasts = [], [], [], []
    gloo = None
    if subprocess.run([options.python, "-c", "import torch.distributed"], stderr=subprocess.DEVNULL, check=False).returncode:
        print(f"left out: a broadcast by gloo, because {options.python} has no PyTorch")
    else:
        gloo = Gloo(options.python, size)
        gloo.broadcast()  # warm
    visible(work, [])
    for i in range(options.repeat):
        times = {}
        for n in (0, READERS) if i % 2 else (READERS, 0):
            readers = [Started(reader, c[-1].socket) for _ in range(n)]
            visible(work, readers)  # warm: memory of the copies is taken
            steps = [visible(work, readers) for _ in range(3)]
            times[n] = statistics.median(s for s, _ in steps)
            latencies += [s for _, s in steps] if n else []
            for r in readers:
                r.end()
        ratios.append(times[READERS] / times[0])
        begin, _, _ = work.ask(path)
        files.append(file.hear() - begin)
        if gloo:
            broadcasts.append(gloo.broadcast())
    work.pipe.send("end")
    work.process.join(WAIT_S)
    file.end()
    if gloo:
        gloo.end()
    ms = 1000 * statistics.median(latencies)
    f = common.figure("follow, visible", [s / statistics.median(files) for s in latencies], ms=round(ms, 2),
                      file_ms=round(1000 * statistics.median(files), 2), bytes=size, readers=READERS)
    output.add(f)
    print(f"{size >> 20} MiB are visible to {READERS} readers {ms:.1f} ms after the step; by a file in memory "
          f"{f['file_ms']:.1f} ms, ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}")
    if gloo:
        f = common.figure("follow, visible, gloo", [s / statistics.median(broadcasts) for s in latencies], ms=round(ms, 2),
                          gloo_ms=round(1000 * statistics.median(broadcasts), 2), bytes=size, readers=READERS)
        output.add(f)
        print(f"by a broadcast of gloo to one process {f['gloo_ms']:.1f} ms, ratio {f['median_ratio']:.3f}, "
              f"{f['spread'][0]:.3f} .. {f['spread'][1]:.3f}")
    f = common.figure("follow, steps", ratios)
    output.add(f)
    print(f"a step with {READERS} readers takes {f['median_ratio']:.3f} of one without, "
          f"{f['spread'][0]:.3f} .. {f['spread'][1]:.3f}")


def ordered(bits):
    """bf16 values by their order: one unit in the last place is 1, also across 0."""
    return [b if b < 0x8000 else 0x7fff - b for b in bits]


def entropy(counts):
    """Bits of a symbol."""
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values() if n)


def least_bytes(was, now):
    """Share of parameters that changed, and the bytes that say which and by how much, over all bytes."""
    steps = collections.Counter(map(operator.sub, ordered(now), ordered(was)))
    share = 1 - steps.pop(0, 0) / len(now)
    bits = entropy({True: share, False: 1 - share}) + share * entropy(steps)
    return share, bits / 16


class Gradients:
    """Normal values, in another order at each step."""

    def __init__(self, elements):
        random.seed(3)
        values = array.array("f", [random.gauss(0, 1) for _ in range(1 << 16)])
        self.pool = array.array("H", array.array("H", values.tobytes())[1::2])
        self.parts = elements >> 16

    def next(self):
        at = random.choices(range(1 << 16), k=self.parts)
        return b"".join((self.pool[k:] + self.pool[:k]).tobytes() for k in at)


def bytes_by_rate(output):
    """What versions take to a node without shards, by the learning rate."""
    layout = zerod.Layout()
    layout.tensor(layout.group("block", "bf16"), "w", (2048, 1024), init="normal", value=0.02)
    size = 2 * layout.group_elements(0)
    gradients = Gradients(size // 2)
    with Cluster(2, owners=1, threads=2, follow_by="deltas") as c, \
            zerod.connect("work", 0, 1, socket=c[0].socket, timeout=WAIT_S) as client, \
            zerod.follow("work", socket=c[1].socket, timeout=WAIT_S) as job:
        client.attach(layout, hold_groups=zerod.ALL, push_groups=zerod.ALL, grad_dtype="bf16")

        def step(rate):
            ctypes.memmove(client.grad(0), gradients.next(), size)
            client.push(0, last=True)
            version = client.step([zerod.AdamWSet(lr=rate)]).version
            with job.wait(newer_than=version - 1) as weights:
                now = array.array("H", ctypes.string_at(weights.address(0), size))
            return now, c[1].job("work")["gather"]["delta_bytes_received"]

        for rate in RATES:
            shares, least, coded = [], [], []
            for _ in range(SETTLE):
                was, before = step(rate)
            for _ in range(MEASURED):
                now, received = step(rate)
                share, bytes_ = least_bytes(was, now)
                shares.append(share)
                least.append(bytes_)
                coded.append((received - before) / size)
                was, before = now, received
            f = common.figure(f"follow, bytes, lr {rate:g}", [a / b for a, b in zip(coded, least)],
                              changed=round(statistics.median(shares), 4), coded=round(statistics.median(coded), 5),
                              index_and_value=round(3 * statistics.median(shares), 4))
            output.add(f)
            print(f"lr {rate:g}: {100 * f['changed']:.1f} % of the parameters change in a step, {100 * f['coded']:.2f} % of the "
                  f"bytes travel, {f['median_ratio']:.2f} of the entropy; index and value {100 * f['index_and_value']:.1f} %")


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build("@BUILD@")
    output = common.Output(options.json)
    with Cluster(1 + options.away, owners=1, threads=2) as c:
        run(options, c, output)
    if not options.away:
        bytes_by_rate(output)


if __name__ == "__main__":
    main()
