#!/usr/bin/env python3
"""bench-fetch [--repeat N] [--json FILE] [--path PATH]... [--max BYTES]

How long a trainer waits for a group of parameters, and until its gradient is taken.

  mapped  one daemon, bf16: the serve plane itself is seen; against a round trip over a unix socket
  copy    one daemon, fp32: against that and a copy
  ucx     two daemons, bf16: against a copy of the near part, and the far part at the rate of ucx_perftest
  tcp     two daemons, bf16: against a copy of the near part, and the far part over a plain TCP connection

Ratios are of times, of the same round: 1 is the limit, more is slower.  Median and quartiles over rounds.
"""
import argparse
import json
import statistics
import subprocess
import sys

sys.path.insert(0, "@SOURCE@/tests/bench")
import nodes  # noqa: E402  (its place is known only now)

BUILD = "@BUILD@"
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
TLS = "^tcp"  # what zerod takes where no transport is named
PATHS = {"mapped": (1, {}), "copy": (1, {}), "ucx": (2, {"bulk": "ucx"}), "tcp": (2, {"bulk": "tcp"})}
PUSHED = ("ucx", "tcp")
AIM_US = 50  # of a mapped fetch, whatever its size
CLIENT_S = 300


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json")
    parser.add_argument("--path", action="append", choices=PATHS)
    parser.add_argument("--max", type=int, default=SIZES[-1], help="bytes of the largest group")
    return parser.parse_args()


def measure(group, path, size, repeat):
    """Rounds, one dictionary each.  The trainer is with the last node: a small group's owner is the first."""
    command = [f"{BUILD}/tests/bench/fetch/fetch-client", "--socket", group.sockets[-1], "--path", path,
               "--job", f"fetch-{size}", "--bytes", str(size), "--rounds", str(repeat), "--tls", TLS]
    client = group.start(command, "client.log", stdout=subprocess.PIPE, text=True)
    try:
        out, _ = client.communicate(timeout=CLIENT_S)
    finally:
        nodes.end(client, 5)
    if client.returncode:
        raise RuntimeError(f"fetch-client, {path}, {size} bytes:\n{group.log('client.log')}")
    return [json.loads(line) for line in out.splitlines()]


def figure(name, what, path, size, rounds):
    ratios = sorted(r[what] / r[what + "_limit"] for r in rounds)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    result = {"name": name, "path": path, "bytes": size, "repeat": len(rounds), "median_ratio": round(middle, 4),
              "spread": [round(low, 4), round(high, 4)],
              "microseconds": round(statistics.median(r[what] for r in rounds), 1),
              "limit_microseconds": round(statistics.median(r[what + "_limit"] for r in rounds), 1)}
    if path in PUSHED:
        result["far_bytes"] = rounds[0][what + "_remote"]
    if path == "mapped":
        result["aim_microseconds"] = AIM_US
    return result


def figures(path, repeat, largest):
    count, options = PATHS[path]
    with nodes.Nodes(BUILD, count, **options) as group:
        for size in SIZES:
            if size > largest:
                break
            rounds = measure(group, path, size, repeat)
            yield figure(f"fetch time, {path}", "fetch", path, size, rounds)
            if path in PUSHED:
                yield figure(f"push time, {path}", "push", path, size, rounds)


def main():
    options = arguments()
    nodes.exit_on_signals()
    out = open(options.json, "w", encoding="utf-8") if options.json else None
    print(f"{'':20} {'bytes':>10} {'us':>10} {'limit us':>10} {'ratio':>7}  quartiles")
    for path in options.path or PATHS:
        for f in figures(path, max(2, options.repeat), options.max):
            print(f"{f['name']:20} {f['bytes']:10} {f['microseconds']:10.1f} {f['limit_microseconds']:10.1f} "
                  f"{f['median_ratio']:7.2f}  {f['spread'][0]:.2f} .. {f['spread'][1]:.2f}", flush=True)
            if out:
                print(json.dumps(f), file=out, flush=True)


if __name__ == "__main__":
    main()
