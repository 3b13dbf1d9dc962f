#!/usr/bin/env python3
"""bench-scrape [--repeat N] [--json FILE] [--seconds N]

What a scraper costs the event loop: CPU seconds of the loop's thread for a step, counted by the kernel, while two
nodes train a small job, with /metrics read from both once a second, over the same without.  Rounds go in pairs, on and off
in turn; median and quartiles.  A second figure is free of the steps' own noise: CPU seconds of a snapshot on nodes whose job
stands still, over the loop's CPU seconds in a second of training.  The aim of both is 1 % more.
"""
import argparse
import http.client
import statistics
import sys
import threading
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import SETS, Cluster, Tools, small_layout, until  # noqa: E402
from ports import free_ports  # noqa: E402

BUILD = "@BUILD@"
BETWEEN_S = 1.0  # scrapes; more than SNAPSHOT_FRESH_MS, so that each has a snapshot of its own
STILL = 12  # scrapes while the job stands still


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=4)
    return parser.parse_args()


def loop_cpu(daemon):
    """Seconds of the loop's thread, which is the first of the process."""
    with open(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0]) / 1e9


def scrape(daemon):
    host, port = daemon.options["http"].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read()
    connection.close()
    assert b"zerod_job_steps_total" in text


def scraping(c, end):
    while not end.wait(BETWEEN_S):
        for d in c.daemons:
            scrape(d)


def spent(c, seconds, work=lambda end: None):
    """(CPU seconds of all loops, steps) of so many seconds."""
    end = threading.Event()
    thread = threading.Thread(target=work, args=(end,))
    before, cpu = c[0].job("work")["version"], sum(map(loop_cpu, c.daemons))
    thread.start()
    time.sleep(seconds)
    end.set()
    thread.join()
    return sum(map(loop_cpu, c.daemons)) - cpu, c[0].job("work")["version"] - before


def still(c):
    """CPU seconds of all loops for a scrape of each."""
    before = sum(map(loop_cpu, c.daemons))
    time.sleep(STILL * BETWEEN_S)
    idle = sum(map(loop_cpu, c.daemons)) - before
    before = sum(map(loop_cpu, c.daemons))
    for _ in range(STILL):
        for d in c.daemons:
            scrape(d)
        time.sleep(BETWEEN_S)
    return max(sum(map(loop_cpu, c.daemons)) - before - idle, 0) / STILL


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    Tools.actor = f"{BUILD}/tests/support/actor"
    output, ports = common.Output(options.json), free_ports(2)
    with Cluster(2, per_node={i: {"http": f"127.0.0.1:{p}"} for i, p in enumerate(ports)}) as c:
        ranks = c.ranks("work", small_layout(), [0, 1], hold=2, push=2)
        cost = still(c)
        for r in ranks:
            r.start("train", steps=100000000, sets=SETS)
        until(lambda: c[0].job("work")["version"] > 100, what="steps")
        pairs = []
        for _ in range(max(2, options.repeat)):
            off, on = spent(c, options.seconds), spent(c, options.seconds, lambda end: scraping(c, end))
            pairs.append((off, on))
    ratios = [(on[0] / on[1]) / (off[0] / off[1]) for off, on in pairs]
    training = statistics.median(off[0] for off, _ in pairs) / options.seconds
    f = common.figure("loop's CPU a step, scraped once a second / not scraped", ratios,
                      us_a_step=round(1e6 * statistics.median(off[0] / off[1] for off, _ in pairs), 2),
                      us_a_scrape=round(1e6 * cost / 2, 1), share_counted=round(cost / BETWEEN_S / training, 5))
    output.add(f)
    print(f"a step takes {f['us_a_step']} us of the loops' CPU; scraped once a second {f['median_ratio']:.3f} of that, "
          f"{f['spread'][0]:.3f} .. {f['spread'][1]:.3f}; a scrape takes {f['us_a_scrape']} us of a loop, "
          f"{100 * f['share_counted']:.2f} % of its CPU while it trains")


if __name__ == "__main__":
    main()
