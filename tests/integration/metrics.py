#!/usr/bin/env python3
"""HTTP: /metrics in both formats, health, /api, and who may ask, on real daemons."""
import concurrent.futures
import importlib
import json
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, Daemon, descriptors, finish_all, small_layout, spawn, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from ports import free_ports  # noqa: E402
from web import get, request  # noqa: E402
import wire  # noqa: E402

OPENMETRICS = "application/openmetrics-text"
# As Prometheus 2.42 asks.
ACCEPT = (f"{OPENMETRICS};version=1.0.0,{OPENMETRICS};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
TOKEN = "0123456789abcdef" * 4


def parser(name):
    """A parser of prometheus_client, which Debian installs for its own Python alone."""
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        return importlib.import_module(f"prometheus_client.{name}").text_string_to_metric_families
    except ImportError:
        raise Skip("needs python3-prometheus-client") from None
    finally:
        sys.path.pop()


def samples(daemon):
    """{(name, labels in order): value}, by the classic parser."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value
            for family in parser("parser")(get(daemon, "/metrics")) for s in family.samples}


def value(daemon, name, **labels):
    found = [v for (n, those), v in samples(daemon).items()
             if n == f"zerod_{name}" and labels.items() <= dict(those).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def cluster(nodes=1, **options):
    ports = free_ports(nodes)
    return Cluster(nodes, per_node={i: {"http": f"127.0.0.1:{p}", **options} for i, p in enumerate(ports)})


def train(c, steps=2):
    ranks = c.ranks("work", small_layout(), [i % len(c.daemons) for i in range(2)], hold=2, push=2)
    for r in ranks:
        r.start("train", steps=steps, sets=SETS)
    finish_all(ranks)
    return ranks


def checkpoints_of(daemon):
    return tuple(value(daemon, f"checkpoint_{name}", job="work") for name in ("every_steps", "last_version"))


@case
def checkpoints_that_stop_show():
    """What the alert reads stays where it was while the job steps on, on every node, whoever is started anew."""
    with Place() as d, cluster(2) as c:
        ranks = train(c)
        begun = int(time.time())
        c[0].ctl("checkpoint", "work", f"{d}/saved", "--every", "2")
        step = 2
        for good in (True, False):
            for _ in range(3):
                for r in ranks:
                    r.start("train", steps=2, first_step=step, sets=SETS)
                finish_all(ranks)
                step += 2
                if good:
                    until(lambda v=step: all(checkpoints_of(x) == (2, v) for x in c.daemons), what="the checkpoint")
            if good:
                shutil.rmtree(f"{d}/saved")
                with open(f"{d}/saved", "w", encoding="ascii"):
                    pass  # whatever comes to this place fails
        for x in (None, *c.daemons):
            if x:
                x.restart()
                c.wait_up()
            for y in c.daemons:
                until(lambda y=y: y.job("work") and y.job("work")["schedule"], what="the job and its schedule")
                until(lambda y=y: value(y, "job_steps_total", job="work") == step, what="the last step")
                assert checkpoints_of(y) == (2, 8), checkpoints_of(y)
                assert begun <= value(y, "checkpoint_last_timestamp_seconds", job="work") <= time.time()
        c[0].ctl("checkpoint", "work", d, "--every", "0")
        until(lambda: not any(n == "zerod_checkpoint_every_steps" for x in c.daemons for n, _ in samples(x)),
              what="the end of the series")


# ---- what is there ------------------------------------------------------------------

@case
def health_and_readiness():
    with cluster() as c:
        assert get(c[0], "/healthz") == "ok\n"
        assert get(c[0], "/readyz") == "ready\n"


@case
def a_draining_node_is_alive_and_not_ready():
    with cluster(drain_ms=60000) as c:
        ranks = train(c)
        ranks[0].start("train", steps=1, first_step=2, sets=SETS)  # waits for the other rank
        until(lambda: value(c[0], "wait_seconds_count", **{"for": "push"}) > 0 and c[0].job("work")["waiting"], what="a step in flight")
        c[0].process.terminate()
        place = c[0].options["http"]
        until(lambda: request(place, "/readyz")[0] == 503, what="readiness to end")
        assert request(place, "/healthz")[0] == 200 and request(place, "/metrics")[0] == 200
        ranks[1].start("train", steps=1, first_step=2, sets=SETS)
        assert c[0].process.wait(60) == 0


@case
def classic_format_passes_promtool():
    if not shutil.which("promtool"):
        raise Skip("needs promtool (package prometheus)")
    with cluster(2) as c:
        train(c)
        for d in c.daemons:
            r = subprocess.run(["promtool", "check", "metrics"], input=get(d, "/metrics"), capture_output=True, text=True,
                               timeout=60, check=False)
            assert r.returncode == 0 and not r.stdout + r.stderr, r


@case
def openmetrics_passes_its_parser():
    parse = parser("openmetrics.parser")
    with cluster(2) as c:
        train(c)
        for accept in (OPENMETRICS, ACCEPT):
            status, headers, text = request(c[0].options["http"], "/metrics", Accept=accept)
            assert status == 200 and headers["Content-Type"].startswith(OPENMETRICS), headers
            names = {family.name for family in parse(text)}
            assert {"zerod_build", "zerod_job_steps", "zerod_peer_up"} <= names, names
        for accept in ("text/plain", "*/*", f"{OPENMETRICS};q=0", f"text/plain,{OPENMETRICS};q=0.5"):
            _, headers, _ = request(c[0].options["http"], "/metrics", Accept=accept)
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4"), (accept, headers)


@case
def numbers_are_those_of_status():
    with cluster(2) as c:
        train(c, steps=3)
        until(lambda: value(c[0], "job_steps_total") == 3, what="a snapshot after the steps")
        d, job = c[0], c[0].job("work")
        assert value(d, "job_steps_total", job="work", user=str(os.getuid())) == job["version"] == 3
        assert value(d, "job_ranks", job="work") == 2
        assert value(d, "gather_misses_total", job="work") == job["gather"]["misses"]
        assert value(d, "build_info") == 1
        for kind, n in job["planes"].items():
            assert value(d, "job_plane_bytes", job="work", kind=kind) == n
        peer = next(p for p in d.status()["peers"] if p["node"] == "n1")
        assert value(d, "peer_sent_bytes_total", node="n0", peer="n1", kind="reduce") == peer["sent"]["reduce"] > 0
        assert all(dict(labels)["node"] == "n0" for _, labels in samples(d))


@case
def process_metrics_are_the_kernels():
    """By the names that all of Prometheus' client libraries give; they are zerod's own process."""
    with cluster() as c:

        def read(path):
            with open(path, encoding="ascii") as f:
                return f.read()

        def process():
            return {name.removeprefix("process_"): v for (name, _), v in samples(c[0]).items() if name.startswith("process_")}
        place, ticks = f"/proc/{c[0].process.pid}", os.sysconf("SC_CLK_TCK")
        began = time.time() - float(read("/proc/uptime").split()[0]) + int(read(f"{place}/stat").rsplit(")", 1)[1].split()[19]) / ticks
        before = process()
        size, resident = (int(n) * os.sysconf("SC_PAGE_SIZE") for n in read(f"{place}/statm").split()[:2])
        assert before.keys() == {"cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds",
                                 "start_time_seconds"}, before
        for now, told in ((size, "virtual_memory_bytes"), (resident, "resident_memory_bytes")):
            assert now / 2 < before[told] < 2 * now, (told, now, before)
        assert before["max_fds"] == int(re.search(r"Max open files +(\d+)", read(f"{place}/limits")).group(1))
        assert abs(before["open_fds"] - c[0].descriptors()) < 10 and abs(before["start_time_seconds"] - began) < 60, (before, began)
        threads = [t for t in os.listdir(f"{place}/task") if int(t) != c[0].process.pid]
        took = sum(int(read(f"{place}/task/{t}/schedstat").split()[0]) for t in threads) / 1e9

        def beside_the_loop():
            seen = {name: v for (name, _), v in samples(c[0]).items()}
            return seen["process_cpu_seconds_total"] - seen["zerod_loop_cpu_seconds_total"]
        until(lambda: beside_the_loop() >= took, what="the CPU time of the other threads")
        held = [wire.Raw(c[0].socket, timeout=600) for _ in range(20)]
        for client in held:
            client.hello()
        after = until(lambda: (now := process())["open_fds"] >= before["open_fds"] + 15 and now, what="the connections")
        for client in held:
            client.close()
        assert after["start_time_seconds"] == before["start_time_seconds"]
        assert before["cpu_seconds_total"] < after["cpu_seconds_total"]


@case
def waits_are_histograms():
    with cluster(2) as c:
        train(c, steps=4)
        for d in c.daemons:
            for what in ("fetch", "push", "step", "vote", "update"):
                until(lambda d=d, what=what: value(d, "wait_seconds_count", job="work", **{"for": what}) >= 4, what=f"4 of {what}")
                assert value(d, "wait_seconds_count", **{"for": what}) == value(d, "wait_seconds_bucket", le="+Inf", **{"for": what})
            assert value(d, "wait_seconds_count", **{"for": "step"}) == 4  # of one rank a node
        assert c[0].job("work")["waited"][0].keys() == {"for", "n", "sum_s", "at_most"}


@case
def a_lost_rank_shows():
    """The rank is away, the job waits for it, and its successor's attempt counts as an abort."""
    with cluster() as c:
        ranks = train(c)
        assert value(c[0], "job_away_ranks") == value(c[0], "job_aborts_total") == 0
        ranks[1].kill()
        ranks[0].start("train", steps=1, sets=SETS)
        until(lambda: value(c[0], "job_away_ranks") == 1, what="the lost rank")
        until(lambda: ("zerod_job_rank_wait_seconds" in {name for name, _ in samples(c[0])}), what="the wait for the rank")
        successor = c.rank("work", small_layout(), [0, 0], 1, incarnation=1, hold=2, push=2)
        successor.start("train", steps=1, sets=SETS)
        for _ in range(4):
            successor.good(successor.finish())
        finish_all(ranks[:1])
        until(lambda: value(c[0], "job_away_ranks") == 0 and value(c[0], "job_steps_total") == 3, what="the step")


@case
def an_abort_counts():
    """A daemon dies while its ranks step: the attempt is given up, and they repeat it."""
    with cluster(2) as c:
        ranks = train(c)
        assert value(c[0], "job_aborts_total") == 0
        for r in ranks:
            r.start("train", steps=1000000, sets=SETS)
        until(lambda: value(c[0], "job_steps_total") > 5, what="steps")
        c[1].restart()
        until(lambda: value(c[0], "job_aborts_total") >= 1, what="the abort")


@case
def slurm_job_and_pod():
    os.environ.update(SLURM_JOB_ID="4711", POD_NAME="trainer-0")
    try:
        with cluster() as c:
            train(c)
            os.environ["POD_NAME"] = 'x"} 1\n'  # is left out
            other = c.rank("other", small_layout(), [0], 0, hold=2, push=2)
            for _ in range(3):
                other.good(other.finish())
            assert value(c[0], "job_origin_ranks", job="work", slurm_job="4711", pod="trainer-0") == 2
            assert value(c[0], "job_origin_ranks", job="other", slurm_job="4711", pod="") == 1
    finally:
        del os.environ["SLURM_JOB_ID"], os.environ["POD_NAME"]


@case
def hostile_slurm_job_and_pod():
    """libzero leaves such names out; a client that sends them is refused."""
    with cluster() as c:
        for number, name in ((12, 'x"} 1\nevil 1'), (12, "x" * 254), (13, "a b"), (13, "\xff")):
            raw = wire.Raw(c[0].socket)
            raw.hello("job", 0, 1, local=1)
            status, text, _ = raw.ask("attach", {1: wire.layout_message(small_layout()), 2: 2, 3: 2, 4: 1, 5: 1, number: name})
            assert status != wire.OK and "[A-Za-z0-9._-]" in text, (name, status, text)
            raw.close()
        get(c[0], "/metrics")


@case
def every_number_of_status_is_a_metric():
    """All numbers that zeroctl status --json prints, but those of single ranks and sessions, and plain identities."""
    apart = {"rank", "pid", "held", "push_window", "uid", "gpu", "since_s", "n", "sum_s", "from_epoch", "filler",
             "plugin_interface"}
    rows = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../daemon/face/status/fields.h")
    with open(rows, encoding="utf-8") as f:
        text = re.sub(r" *\\\n *", " ", f.read())
    records = dict(re.findall(r"#define (STATUS_\w+)\(F, R\) (.*)", text))
    seen, ahead = set(), ["STATUS_NODE"]
    while ahead:
        name = ahead.pop()
        seen.add(name)
        ahead += [t.upper() for t in re.findall(r"R\(\w+, (status_\w+),", records[name]) if t.upper() not in seen]
        for row in re.findall(r"F\((?:number|real|flag|counts), .*?\)(?= [FR]\(|$)", records[name]):
            field = row.split(",")[1].strip()
            assert re.search(r"(COUNTER|GAUGE|LABEL)\(", row) or field in apart | {"self", "reached", "attached", "no_events", "stash_unpinned", "push_slots", "at_most"}, (
                name, row)
    assert {"STATUS_JOB", "STATUS_PEER", "STATUS_GPU_MEMORY"} <= seen


@case
def series_vanish_with_the_job():
    with cluster() as c:
        for r in train(c):
            c.dismiss(r)
        assert "work" in get(c[0], "/metrics")
        c[0].ctl("drop", "work")
        until(lambda: "work" not in get(c[0], "/metrics"), what="the end of the job's series")


@case
def api_is_what_zeroctl_prints():
    with cluster(2) as c:
        train(c)
        for path, command in (("jobs", "jobs"), ("members", "members"), ("config", "config")):
            mine, told = json.loads(get(c[0], f"/api/{path}")), c[0].ctl(command)
            assert mine == told or path == "jobs" and [j["job"] for j in mine["jobs"]] == ["work"], (mine, told)
        assert json.loads(get(c[0], "/api/status")).keys() == c[0].status().keys()
        assert json.loads(get(c[0], "/api/jobs?job=work"))["jobs"][0]["job"] == "work"
        assert request(c[0].options["http"], "/api/jobs?job=nobody")[0] == 404


@case
def scraped_while_owners_change():
    """The engine starts anew under the scraper: answers are whole, or 503."""
    with cluster(2, owners="n0") as c:
        train(c)
        ended, seen = threading.Event(), set()

        def scrape():
            while not ended.is_set():
                status, _, text = request(c[0].options["http"], "/metrics", Accept=OPENMETRICS)
                assert status == 503 or text.endswith("# EOF\n"), text
                seen.add(status)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            scraper = pool.submit(scrape)
            try:
                c[0].change_owners("add-node", "n1")
                until(lambda: value(c[0], "peer_owner", peer="n1") == 1 and value(c[0], "job_whole", job="work") == 1,
                      what="the new owner")
            finally:
                ended.set()
            scraper.result(60)
        assert 200 in seen, seen


# ---- where --------------------------------------------------------------------------

@case
def unix_socket():
    with Cluster(1, start=False) as c:
        path = f"{c.directory}/http.sock"
        c[0].options["http"] = path
        c.start()
        assert "zerod_build_info" in get(c[0], "/metrics")
        c[0].process.terminate()
        assert c[0].process.wait(60) == 0
        assert not os.path.exists(path)


@case
def empty_is_off():
    """Nothing listens but the unix socket."""
    with Cluster(1, http="") as c:
        process = f"/proc/{c[0].process.pid}"
        for table in ("tcp", "tcp6"):
            with open(f"{process}/net/{table}", encoding="ascii") as f:
                listening = {f"socket:[{line.split()[9]}]" for line in f if line.split()[3] == "0A"}
            assert not set(descriptors(c[0].process.pid).values()) & listening


def refusal(options, *words):
    with Cluster(1, start=False, **options) as c:
        c[0].start()
        assert c[0].process.wait(60) == 1
        assert all(w in c[0].log() for w in words), c[0].log()
        c.daemons.clear()


@case
def other_addresses_need_a_token():
    refusal({"http": "0.0.0.0:17680"}, "http_token_file", "reverse proxy")
    refusal({"http": "[::]:17680"}, "http_token_file")
    refusal({"http": "example.org:80"}, "must be an IP address")


@case
def token():
    with Cluster(1, start=False) as c:
        with open(f"{c.directory}/token", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(TOKEN + "\n")
        c[0].options.update(http=f"0.0.0.0:{free_ports(1)[0]}", http_token_file=f"{c.directory}/token")
        c.start()
        place = c[0].options["http"]
        for shown in (None, "Bearer", f"Bearer {TOKEN[:-1]}0", f"Bearer {TOKEN}0", f"Basic {TOKEN}"):
            status, headers, _ = request(place, "/metrics", **({"Authorization": shown} if shown else {}))
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer", shown
        assert request(place, "/metrics", Authorization=f"Bearer {TOKEN}", Host="node.example.org")[0] == 200
        # what probes a node has no token
        assert [request(place, path)[0] for path in ("/healthz", "/readyz", "/api/status")] == [200, 200, 401]


@case
def default_address_in_use():
    """A second daemon on the machine warns and does without; one whose address a person chose does not start."""
    with Cluster(1, start=False) as c, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refusal({"http": f"127.0.0.1:{port}"}, "Address already in use", "the option http")
        other = Daemon("other", c.directory, 0, {**c[0].options})
        del c[0].options["http"], other.options["http"]
        other.options.update(node="other", socket=other.socket, state_dir=f"{c.directory}/other.state")
        c.start()
        c.daemons.append(other)
        other.start()
        until(lambda: "no /metrics: http = 127.0.0.1:7680: Address already in use" in other.log(), what="the warning")
        assert other.peers_up()


# ---- who may ask --------------------------------------------------------------------

@case
def hosts_and_origins():
    with cluster() as c:
        place = c[0].options["http"]
        for host in (place, "localhost", "localhost:1", "n0", "n0:7680", "[::1]:7680", "10.1.2.3"):
            assert request(place, "/metrics", Host=host)[0] == 200, host
        for host in ("example.org", f"example.org:{place.rsplit(':', 1)[1]}", "127.0.0.1.example.org", "n0.example.org",
                     "[::1", "", "x" * 300, "127.0.0.1@example.org", "[::1]x", "[127.0.0.1]", "[localhost]", "n0:7680:1", "n0:x", "::1",
                     "localhost:80 ,example.org"):
            assert request(place, "/metrics", Host=host)[0] in (400, 403), host
        for headers in ({"Origin": "http://example.org"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
                        {"Sec_Fetch_Site": "same-site"}):
            status, sent, _ = request(place, "/api/status", **headers)
            assert status == 403 and "Access-Control-Allow-Origin" not in sent, headers
        assert request(place, "/api/status", Sec_Fetch_Site="none")[0] == 200


@case
def methods_and_paths():
    with cluster() as c:
        place = c[0].options["http"]
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
            status, headers, _ = request(place, "/metrics", method)
            assert status == 405 and headers["Allow"] == "GET, HEAD", method
        status, headers, text = request(place, "/metrics", "HEAD")
        assert status == 200 and int(headers["Content-Length"]) > 1000 and text == ""
        for path in ("/metrics/", "//metrics", "/../etc/passwd", "/api/../metrics", "/api/%2e%2e/metrics", "/api/", "/api/shards"):
            assert request(place, path)[0] == 404, path
        for path in ("/metrics?job=work", "/api/jobs?user=0", "/api/jobs?job=a&job=b", "/api/jobs?job", "/?x=1"):
            assert request(place, path)[0] == 400, path


# ---- Prometheus ---------------------------------------------------------------------

SCRAPE = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: zerod
    honor_labels: true
    static_configs: [{{targets: {targets}}}]
"""
DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/grafana/zerod.json")
RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus/zerod.rules.yml")


def query(place, expression):
    status, _, text = request(place, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    return {tuple(sorted(r["metric"].items())): float(r["value"][1])
            for r in json.loads(text)["data"]["result"]} if status == 200 else {}


@case
def prometheus_scrapes_a_cluster():
    """A real Prometheus with the rules of deploy/: both nodes' series come, and the label job stays the training job."""
    if not shutil.which("prometheus"):
        raise Skip("needs prometheus")
    with cluster(2) as c:
        ranks, place = train(c), f"127.0.0.1:{free_ports(1)[0]}"
        with open(f"{c.directory}/prometheus.yml", "w", encoding="utf-8") as f:
            f.write(SCRAPE.format(rules=json.dumps(os.path.realpath(RULES)),
                                  targets=json.dumps([d.options["http"] for d in c.daemons])))
        with open(f"{c.directory}/prometheus.log", "wb") as log:
            c.others.append(spawn(["prometheus", f"--config.file={c.directory}/prometheus.yml",
                                   f"--storage.tsdb.path={c.directory}/data", f"--web.listen-address={place}"],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log))

        def answers(expression):
            try:
                return query(place, expression)
            except OSError:
                return {}
        until(lambda: [v for _, v in answers("up").items()] == [1, 1], what="the first scrapes")
        for r in ranks:
            r.start("train", steps=3, first_step=2, sets=SETS)
        finish_all(ranks)
        steps = until(lambda: (found := answers('zerod_job_steps_total{job="work"} == 5')) and len(found) == 2 and found,
                      what="the steps of both nodes")
        assert {dict(labels)["node"] for labels in steps} == {"n0", "n1"}
        until(lambda: len(answers("job:zerod_steps:rate5m")) == 1, what="a recorded rule")
        with open(DASHBOARD, encoding="utf-8") as f:
            overview = {p["title"]: p["targets"][0]["expr"] for p in json.load(f)["panels"] if p["type"] == "stat"}

        def shows(title, nodes="n0|n1"):
            return list(answers(overview[title].replace("$job", "work").replace("$node", nodes)).values())
        nodes, down, *others = overview
        until(lambda: shows(nodes) == [2] and shows(nodes, "n1") == [1], what="the nodes of the overview")
        assert shows(down) == [0] and all(shows(title) for title in others), [shows(title) for title in overview]
        c[1].kill()
        until(lambda: any(dict(labels)["alertname"] == "ZerodNodeDown" and dict(labels)["peer"] == "n1"
                          for labels in answers("ALERTS")), what="the alert of the node that died")
        assert shows(down) == [1]


# ---- hostile clients ----------------------------------------------------------------

def connect(place):
    host, port = place.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 60)
    s.settimeout(60)
    return s


def answer(place, data):
    """What the server says to these bytes; the empty text: it only closes."""
    with connect(place) as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            return s.makefile("rb").read().decode(errors="replace")
        except OSError as why:  # the server has closed
            assert not isinstance(why, socket.timeout), data[:200]
            return ""


@case
def garbage():
    r = random.Random(11)
    with cluster() as c:
        place, before = c[0].options["http"], c[0].descriptors()
        said = (b"", bytes(209), b"\x16\x03\x01\x02\x00" + r.randbytes(512), b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                b"GET /metrics HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: n0\r\n\r\n",
                b"GET http://example.org/metrics HTTP/1.1\r\nHost: example.org\r\n\r\n",
                b"POST /metrics HTTP/1.1\r\nHost: n0\r\nContent-Length: 99999999999999999999\r\n\r\n",
                b"GET /metrics HTTP/1.1\r\nHost: n0\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                *(r.randbytes(r.randint(1, 3000)) for _ in range(50)))
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            for data, text in zip(said, pool.map(lambda data: answer(place, data), said)):
                assert "zerod_" not in text or b"chunked" in data, (data, text)
        until(lambda: c[0].descriptors() <= before, what="the end of all connections")
        get(c[0], "/metrics")


@case
def random_paths_and_parameters():
    r = random.Random(12)
    parts = ["/", "metrics", "api", "jobs", "status", "..", "%2e", "%00", "%", "?", "job", "=", "&", "work", "#", ";", "%ff", "+", "~", "x" * 500]
    with cluster() as c:
        train(c)
        for _ in range(500):
            path = "/" + "".join(r.choice(parts) for _ in range(r.randint(0, 8)))
            text = answer(c[0].options["http"], f"GET {path} HTTP/1.1\r\nHost: n0\r\nConnection: close\r\n\r\n".encode())
            assert text.split(" ")[1] in ("200", "400", "404"), (path, text[:200])
        assert c[0].alive()


@case
def huge_headers():
    with cluster() as c:
        place, before = c[0].options["http"], c[0].memory()
        for _ in range(20):
            said = answer(place, b"GET /metrics HTTP/1.1\r\nHost: n0\r\nX: " + b"x" * (4 << 20) + b"\r\n\r\n")
            assert not said or said.split(" ")[1] in ("413", "431"), said[:200]
        assert answer(place, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: n0\r\n\r\n").split(" ")[1:2] in ([], ["414"])
        assert c[0].memory() - before < 8 << 10
        get(c[0], "/metrics")


@case
def ten_thousand_connections():
    """Most wait in the socket's queue.  While they are there the job trains; afterwards all are gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11000:
        raise Skip("needs 11,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with cluster() as c:
            ranks, held = train(c), []  # first, for select() takes small numbers alone
            before = c[0].descriptors()
            host, port = c[0].options["http"].split(":")
            for _ in range(10000):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex((host, int(port)))
                held.append(s)
            for rank in ranks:
                rank.start("train", steps=2, first_step=2, sets=SETS)
            finish_all(ranks)
            assert c[0].descriptors() < before + 100, c[0].descriptors()
            for s in held:
                s.close()
            until(lambda: request(c[0].options["http"], "/healthz")[0] == 200, what="an answer")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@case
def slow_clients_hold_nobody_up():
    """More than may be connected send a byte now and then: after 10 s they are cut off, and others have their turn."""
    with cluster() as c:
        place = c[0].options["http"]
        slow = [connect(place) for _ in range(80)]
        for s in slow:
            s.sendall(b"GET /metrics HTTP/1.1\r\n")
        ended = threading.Event()

        def trickle():
            while not ended.wait(0.5):
                for s in slow:
                    try:
                        s.send(b"X")
                    except OSError:
                        pass
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            until(lambda: request(place, "/healthz")[0] == 200, what="an answer beside slow clients")
        finally:
            ended.set()
            thread.join()
            for s in slow:
                s.close()


def from_address(place, address, data=b""):
    host, port = place.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 60, (address, 0))
    s.sendall(data)
    return s


@cases_of(["silent", "deaf"])
def connections_that_stay_keep_no_probe_out(how):
    """They say nothing, or do not read the answer; each that is cut off comes again, from the probe's address or others."""
    data = b"" if how == "silent" else b"GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n"
    with cluster() as c:
        place, ended = c[0].options["http"], threading.Event()
        train(c)

        def stay(number):
            while not ended.is_set():
                with from_address(place, f"127.0.0.{1 + number % 9}", data) as s:
                    s.settimeout(0.5)
                    while not ended.is_set():
                        try:
                            if not data and not s.recv(1):
                                break
                            ended.wait(0.5)
                            s.send(b"")
                        except socket.timeout:
                            pass
                        except OSError:
                            break
        held = [threading.Thread(target=stay, args=(n,)) for n in range(150)]
        for thread in held:
            thread.start()
        try:
            end = time.monotonic() + 120  # a server that waits for them to idle takes 5 s a probe
            for probe in range(100):
                assert request(place, "/healthz")[0] == 200
                assert time.monotonic() < end, f"{probe} probes of 100 were answered"
        finally:
            ended.set()
            for thread in held:
                thread.join()
        until(lambda: request(place, "/healthz")[0] == 200, what="an answer when they are gone")


if __name__ == "__main__":
    main()
