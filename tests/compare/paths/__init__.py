"""Every path beside its limit, or beside what else PyTorch's users have for it.

The programs of tests/bench measure a path and its limit in turn; a ratio is the median of three rounds.  A ratio of times
has an aim "at most", a ratio of rates "at least".  fetch and push: one rank, two daemons, groups of up to 1 GiB in bf16.
The limit is a round trip, a copy of the near part, and the far part by raw TCP or at ucx_perftest's rate.  Payloads of
"tcp" are authenticated, as by default, and its limit has plain ones; those of "tcp-plain" are not.  bulk: payloads between
two processes, 16 in flight.  A daemon sends a group in payloads of up to 8 MiB.  "tcp / limit": plain payloads, and
libsodium's AES-256-GCM on as many bytes, one after the other; ChaCha20-Poly1305 if the CPU does not compute AES.  gather
and reduce beside gloo: two ranks at once, a node each, in bf16; the time of the slower one.

Known causes of a "no".  A fetch or push passes two daemons, where the limit has plain processes: that counts up to 1 MiB.
An owner adds a pushed range once all of it has come.  Both ends of an authenticated payload compute its tag, while the
limit of fetch and push has none: "tcp / limit" is the fair one.  A copy writes half of its bytes.  A norm only reads, and a
sum reads eight times what it writes: reading binds both ("reading").  Updates in 8 bits are bound by
arithmetic.  A crash-consistent update stores 26 bytes a parameter, where the other one stores 14: that counts where memory is
fast.  Other rows have no known cause yet.
"""
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile

from cluster import Cluster, end_process, spawn
from compare import SPEEDS
from limit import available

from table import Section

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]  # those of bench-fetch
ROUNDS, RUN_S, END_S = 3, 300, 30
BESIDE_GLOO = {"ucx": {"bulk": "ucx"}, "tcp-plain": {"bulk": "tcp", "tcp_payloads": "plain"}}  # gloo protects nothing
PARTS = {
    "fetch": [["fetch", "--path", "ucx", "--path", "tcp", "--path", "tcp-plain"]],
    "bulk": [["bulk", "--megabytes", "64"]],
    "gloo": None,
    "kernels": [["kernels", "--threads", str(n)] for n in sorted({1, os.cpu_count()})],
    "update": [["update", "--elements", str(8 << 20)]],
}
ROOM = {"fetch": 15, "gloo": 18}  # bytes of memory for each byte of a group: state, windows, what limits and gloo take
OPERATIONS = {"gather": "all_gather", "reduce": "reduce_scatter"}


class Failed(Exception):
    """Why there are no figures."""


def size_text(n):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n / unit:g} {name}"
    return f"{n} B"


def time_text(us):
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.0f} us"


def rate_text(rate):
    return f"{rate / 1e9:.2f} GB/s"


def largest(part):
    """Bytes of the largest group for which the machine has memory."""
    free = available()
    return max((s for s in SIZES if ROOM.get(part, 0) * s <= free), default=SIZES[0])


# ---- programs of tests/bench ------------------------------------------------------

def figures(options, command, say):
    """What a program writes; why there is no more to `say`."""
    name = command[0]
    program = f"{options.build}/tests/bench/{name}/bench-{name}"
    if not os.path.exists(program):
        say("it is not built")
        return []
    with tempfile.TemporaryDirectory(prefix="zerod-compare-") as directory:
        out, errors = f"{directory}/json", f"{directory}/log"
        with open(errors, "wb") as log:
            process = spawn([program, *command[1:], "--repeat", str(ROUNDS), "--json", out], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=log)
        try:
            if process.wait(RUN_S):
                with open(errors, encoding="utf-8", errors="replace") as log:
                    lines = [f"status {process.returncode}", *filter(None, map(str.strip, log))]
                for line in [x for x in lines if x.startswith(f"bench-{name}: ")] or lines[-1:]:
                    say(line)
        except subprocess.TimeoutExpired:
            say(f"no end within {RUN_S} s")
        finally:
            end_process(process, END_S)
        if not os.path.exists(out):
            return []
        with open(out, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]  # the last one may be cut off


def cells(program, figure):
    """path, size, zerod, peer or limit."""
    name, ratio = figure["name"], figure["median_ratio"]
    if program == "bulk":
        return (name, size_text(figure["bytes"]), rate_text(figure["bytes_per_second"]),
                f"{figure['peer']}: {rate_text(figure['peer_bytes_per_second'])}")
    if program == "fetch":
        return (name.replace(" time", ""), size_text(figure["bytes"]), time_text(figure["microseconds"]),
                f"copy and {'ucx_perftest' if 'ucx' in name else 'raw tcp'}: {time_text(figure['limit_microseconds'])}")
    if program == "kernels":
        path, _, limit = name.partition("/")
        threads = f"{figure['threads']} thread{'s' * (figure['threads'] > 1)}"
        return (f"{path.replace('_', ' ')}, {threads}", f"{figure['elements'] >> 20} Mi elements", f"{figure['gb_per_s']:.1f} GB/s",
                f"{limit.replace('_', ' ')}: {figure['gb_per_s'] / ratio:.1f} GB/s")
    path, _, limit = name.partition(" / ")
    return path, "", "", limit


def verdict(program, figure):
    """ratio, aim, holds."""
    ratio, aim = figure["median_ratio"], figure.get("aim")
    if aim is None:
        return f"{ratio:.3f}", "", ""
    least = program in SPEEDS or "a second" in figure["name"]
    return f"{ratio:.3f}", f"at {'least' if least else 'most'} {aim:g}", "yes" if (ratio >= aim if least else ratio <= aim) else "no"


def programs(options, part, section, most):
    for command in PARTS[part]:
        program, failed = command[0], []
        found = figures(options, command + (["--max", str(most)] if part in ROOM else []), failed.append)
        names = [f["name"] for f in found]
        for f in sorted(found, key=lambda f: names.index(f["name"])):
            if "aim" in f or "peer" in f:  # the others compare zerod with itself
                section.row(*cells(program, f), *verdict(program, f))
        for line in failed:
            section.wrong = True
            section.row(" ".join(command[:3]), "", "", "", "", "", f"not measured: {line}")


# ---- gloo -------------------------------------------------------------------------------

def pairs(options, path, most):
    """{size, operation: seconds of each round} a size, the slower rank's."""
    directory = tempfile.mkdtemp(prefix="zerod-compare-")
    with contextlib.ExitStack() as kept:
        kept.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = kept.enter_context(Cluster(2, threads=0, **BESIDE_GLOO[path]))
        ranks = []
        for rank in range(2):
            config = {"rank": rank, "socket": cluster[rank].socket, "store": f"{directory}/store", "rounds": ROUNDS,
                      "sizes": [s for s in SIZES if s <= most]}
            with open(f"{directory}/{rank}.log", "wb") as log:
                ranks.append(spawn([options.python, "-B", f"{HERE}/rank.py", json.dumps(config)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=log, env=options.environment()))
            kept.callback(end_process, ranks[-1], 1)
        try:
            told = [[json.loads(line) for line in r.communicate(timeout=RUN_S)[0].splitlines()] for r in ranks]
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {RUN_S} s") from None
        for rank, process in enumerate(ranks):
            if process.returncode:
                with open(f"{directory}/{rank}.log", encoding="utf-8", errors="replace") as log:
                    raise Failed(f"rank {rank}: {(['no word', *filter(str.strip, log)])[-1].strip()}")
    return [{"size": a["size"], **{k: [max(both) for both in zip(a[k], b[k])] for k in a if k != "size"}} for a, b in zip(*told)]


def gloo(options, section, most):
    for path in BESIDE_GLOO:
        try:
            told = pairs(options, path, most)
            for ours, theirs in OPERATIONS.items():
                for found in told:
                    ratio = statistics.median(a / b for a, b in zip(found[ours], found[theirs]))
                    us, peer = (time_text(1e6 * statistics.median(found[k])) for k in (ours, theirs))
                    section.row(f"{ours}, {path}", size_text(found["size"]), us, f"gloo {theirs}: {peer}", f"{ratio:.3f}", "", "")
        except (Failed, AssertionError) as why:
            section.wrong = True
            section.row(f"gather and reduce, {path}", "", "", "gloo", "", "", f"not measured: {' '.join(str(why).split())}")


def measure(options):
    section = Section("paths", ["path", "size", "zerod", "peer or limit", "ratio", "aim", "holds"],
                      numbers=("size", "zerod", "ratio"))
    for part in options.only or PARTS:
        options.say(part)
        most = largest(part)
        if part == "gloo":
            gloo(options, section, most)
        else:
            programs(options, part, section, most)
        if part in ROOM and most < SIZES[-1]:
            section.row(part, f"over {size_text(most)}", "", "", "", "",
                        f"not measured: takes {ROOM[part]} times as much memory, which is not free")
    return section
