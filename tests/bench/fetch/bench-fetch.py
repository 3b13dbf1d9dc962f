#!/usr/bin/env python3
"""bench-fetch [--repeat N] [--json FILE] [--path PATH]... [--max BYTES]

How long a trainer waits for a group of parameters, and until its gradient is taken.

  mapped  one daemon, bf16: the serve plane itself is seen; against a round trip over a unix socket
  copy    one daemon, fp32 beside bf16: against that and a copy
  ucx     two daemons, bf16: against a copy of the near part, and the far part at the rate of ucx_perftest
  tcp     two daemons, bf16: against a copy of the near part, and the far part over a plain TCP connection
  tcp-plain  the same of daemons that do not authenticate payloads

Ratios are of times, of the same round: 1 is the limit, more is slower.  Median and quartiles over rounds.
"""
import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import Cluster, end_process, free_ports, spawn  # noqa: E402

BUILD = "@BUILD@"
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
PATHS = {"mapped": (1, {}), "copy": (1, {}), "ucx": (2, {"bulk": "ucx"}), "tcp": (2, {"bulk": "tcp"}),
         "tcp-plain": (2, {"bulk": "tcp", "tcp_payloads": "plain"})}
PUSHED = ("ucx", "tcp", "tcp-plain")
AIM_US = 50  # of a mapped fetch, whatever its size
SMALL, AIM_SMALL, AIM = 4 << 10, 1.5, 1.1  # of the others
ROUND_S = 60
PERFTEST_S = 20
PERFTEST_BYTES = 128 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json")
    parser.add_argument("--path", action="append", choices=PATHS)
    parser.add_argument("--max", type=int, default=256 << 20, help="bytes of the largest group")
    return parser.parse_args()


# ---- the rate of UCX ------------------------------------------------------------

def perftest(transports, size, mode):
    """Bytes a second of ucp_am_bw; mode: how it waits, poll or sleep."""
    count = max(4, min(20000, PERFTEST_BYTES // size))
    port = str(free_ports(1)[0])
    command = ["ucx_perftest", "-p", port, "-E", mode]
    load = ["-t", "ucp_am_bw", "-s", str(size), "-n", str(count), "-w", "4", "-f", "-v", "127.0.0.1"]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
             "env": {**os.environ, "UCX_TLS": transports, "UCX_LOG_LEVEL": "error"}}
    server = client = None
    try:
        server = spawn(command, stdout=subprocess.DEVNULL, **quiet)
        time.sleep(0.2)  # it does not say when it listens
        client = spawn([*command, *load], stdout=subprocess.PIPE, text=True, **quiet)
        out, _ = client.communicate(timeout=PERFTEST_S)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return 0
    finally:
        for process in (client, server):
            if process:
                end_process(process, 0.5)
    last = out.splitlines()[-1:] or [""]
    fields = last[0].split(",")
    return float(fields[5]) * (1 << 20) if len(fields) > 5 else 0


def ucx_us(transports, size):
    """The quicker way to wait: spinning needs a CPU on both sides, sleeping costs small payloads more."""
    if not size:
        return 0
    rate = max(perftest(transports, size, mode) for mode in ("poll", "sleep"))
    if not rate:
        raise RuntimeError("ucx_perftest could not run (package ucx-utils)")
    return size / rate * 1e6


# ---- rounds ---------------------------------------------------------------------------

class Client:
    """fetch-client; the trainer is with the last node, for a small group's owner is the first."""

    def __init__(self, cluster, path, size):
        daemon = cluster.daemons[-1]
        command = [f"{BUILD}/tests/bench/fetch/fetch-client", "--socket", daemon.socket, "--path", path,
                   "--job", f"fetch-{size}", "--bytes", str(size)]
        self.transports = next((p["bulk_detail"] for p in daemon.status()["peers"] if not p["self"]), "")
        self.path = path
        self.process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()  # it drops its job then
        try:
            self.process.wait(ROUND_S)
        finally:
            end_process(self.process, 1)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], ROUND_S)[0]:
            raise RuntimeError(f"fetch-client, {self.path}: no answer in {ROUND_S} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"fetch-client, {self.path}: it ended early")
        result = json.loads(line)
        if self.path == "ucx":
            far = result["fetch_far"]
            us = ucx_us(self.transports, far)
            result["fetch_limit"] += us
            result["push_limit"] += us * result["push_far"] / far if far else 0
        return result


def measure(cluster, path, size, repeat):
    with Client(cluster, path, size) as client:
        client.round()  # for warming up
        return [client.round() for _ in range(repeat)]


def figure(what, path, size, rounds):
    settings = {"bytes": size, "microseconds": round(statistics.median(r[what] for r in rounds), 1),
                "limit_microseconds": round(statistics.median(r[what + "_limit"] for r in rounds), 1)}
    if path in PUSHED:
        settings.update(far_bytes=rounds[0][what + "_far"], aim=AIM_SMALL if size <= SMALL else AIM)
    if path == "mapped":
        settings["aim_microseconds"] = AIM_US
    return common.figure(f"{what} time, {path}", [r[what] / r[what + "_limit"] for r in rounds], **settings)


def figures(path, repeat, largest):
    count, options = PATHS[path]
    with Cluster(count, threads=0, **options) as cluster:
        for size in (s for s in SIZES if s <= largest):
            rounds = measure(cluster, path, size, repeat)
            yield figure("fetch", path, size, rounds)
            if path in PUSHED:
                yield figure("push", path, size, rounds)


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    output = common.Output(options.json)
    print(f"{'':20} {'bytes':>10} {'us':>10} {'limit us':>10} {'ratio':>7}  quartiles")
    for path in options.path or PATHS:
        for f in figures(path, max(2, options.repeat), options.max):
            output.add(f)
            print(f"{f['name']:20} {f['bytes']:10} {f['microseconds']:10.1f} {f['limit_microseconds']:10.1f} "
                  f"{f['median_ratio']:7.2f}  {f['spread'][0]:.2f} .. {f['spread'][1]:.2f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"bench-fetch: {error}")
