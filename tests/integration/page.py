#!/usr/bin/env python3
"""The page of HTTP: its parts and policy, the map of shards, and a real browser before a cluster that trains."""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from browser import Browser  # noqa: E402
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, finish_all, group, small_layout, tensor, until  # noqa: E402
from harness import case, main  # noqa: E402
from ports import free_ports  # noqa: E402
from reading import reader  # noqa: E402
from web import get, request  # noqa: E402

PARTS = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
HOSTILE = "<img src=x onerror=alert(1)><b>\"&amp;"
# The page's next readings say HOSTILE wherever they say a text.
BE_HOSTILE = """
    const real = window.fetch, evil = arguments[0], spoil = x => typeof x === 'string' ? x + evil : Array.isArray(x) ? x.map(spoil)
      : x && typeof x === 'object' ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, spoil(v)])) : x;
    window.fetch = async (...a) => new Response(JSON.stringify(spoil(await (await real(...a)).json())));"""
# Three ticks begin at once, and no later one.  What they leave: how many answers came, and who waits for the next tick.
TICKS = """
    const real = window.fetch;
    window.came = window.waits = 0;
    window.fetch = async (...a) => { const text = await (await real(...a)).text(); window.came++; return new Response(text); };
    window.setTimeout = () => ++window.waits;
    for (let i = 0; i < 3; i++) document.getElementById('ask').dispatchEvent(new Event('submit', { cancelable: true }));"""
TAB = "\ue004"


def cluster(nodes=2, **options):
    ports = free_ports(nodes)
    return Cluster(nodes, per_node={i: {"http": f"127.0.0.1:{p}"} for i, p in enumerate(ports)}, **options)


def job_map(daemon, name="work"):
    return next((j for j in json.loads(get(daemon, "/api/map"))["jobs"] if j["job"] == name), None)


def train(c, name="work", steps=2, placement=(0, 1)):
    ranks = c.ranks(name, small_layout(), list(placement), hold=2, push=2)
    for r in ranks:
        r.start("train", steps=steps, sets=SETS)
    finish_all(ranks)
    return ranks


# ---- without a browser --------------------------------------------------------------

@case
def parts_and_policy():
    """Only the page's own parts are loaded, nothing is framed, and an answer that is no page has the policy too."""
    with cluster(1) as c:
        for path in (*PARTS, "/api/status"):
            status, headers, text = request(c[0].options["http"], path)
            assert status == 200 and headers["Content-Type"].startswith(PARTS.get(path, "application/json")), (path, headers)
            assert int(headers["Content-Length"]) == len(text.encode()) > 100
            policy = headers["Content-Security-Policy"]
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= {
                rule.strip() for rule in policy.split(";")}, policy
            assert "unsafe" not in policy and headers["X-Content-Type-Options"] == "nosniff"
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../daemon/face/http/page.js"), encoding="utf-8") as f:
            assert get(c[0], "/page.js") == f.read()


@case
def who_may_have_the_page():
    with cluster(1) as c:
        place = c[0].options["http"]
        for path in PARTS:
            for host in (place, "localhost", "n0"):
                assert request(place, path, Host=host)[0] == 200, (path, host)
            for host in ("example.org", "127.0.0.1.example.org"):
                assert request(place, path, Host=host)[0] == 403, (path, host)
            for headers in ({"Origin": "http://example.org"}, {"Sec_Fetch_Site": "cross-site"}):
                assert request(place, path, **headers)[0] == 403, (path, headers)
            assert request(place, path, Sec_Fetch_Site="same-origin")[0] == 200
            assert request(place, path, "POST")[0] == 405
            assert request(place, path + "?x=1")[0] == 400


@case
def map_of_shards():
    """Owners, elements and versions; those of the other node as it told them."""
    with cluster() as c:
        train(c, steps=3)
        whole = until(lambda: (m := job_map(c[0])) and all(o["version"] == 3 for o in m["owners"]) and m, what="the other node's versions")
        assert whole["version"] == 3 and whole["groups"] == 5 and whole["bands"] == [0, 1, 2, 3, 4]
        told = {s["owner"]: {} for g in c[0].ctl("shards", "work")["jobs"][0]["groups"] for s in g["shards"]}
        for g in c[0].ctl("shards", "work")["jobs"][0]["groups"]:
            for s in g["shards"]:
                told[s["owner"]][g["index"]] = s["count"], s["version"]
        assert [o["node"] for o in whole["owners"]] == ["n0", "n1"]
        for o in whole["owners"]:
            assert {i: (n, v) for i, (n, v) in enumerate(zip(o["elements"], o["oldest"])) if n} == told[o["node"]]
            assert o["oldest"] == o["newest"]


@case
def map_of_many_groups():
    """Of a job with more groups than anybody can look at there is a summary: bands, whose groups are all of the job."""
    with cluster(1) as c:
        layout = [group(f"g{i}", tensor(f"t{i}", 8)) for i in range(5000)]
        c.ranks("many", layout, [0], hold=2, push=2)
        text = get(c[0], "/api/map")
        found = job_map(c[0], "many")
        assert found["groups"] == 5000 and len(found["bands"]) == 64 and found["bands"] == sorted(set(found["bands"]))
        owner, = found["owners"]
        assert sum(owner["elements"]) >= 8 * 5000 and len(owner["oldest"]) == 64
        assert len(text) < 5000 and "g17" not in text, len(text)


@case
def map_of_all_jobs_has_one_bound():
    """What one job may take of the loop all jobs may take together: the last one's elements and versions are left out."""
    with cluster(1) as c:
        layout = [group(f"g{i}", tensor(f"t{i}", 1)) for i in range(65536)]
        for i in range(3):
            c.ranks(f"many{i}", layout, [0], hold=1, push=1)
        jobs = [job["owners"][0] for job in json.loads(get(c[0], "/api/map"))["jobs"]]
        assert sorted((len(o["elements"]), len(o["oldest"])) for o in jobs) == [(0, 0), (64, 64), (64, 64)], jobs


@case
def the_other_nodes_are_asked_seldom():
    with cluster(2) as c:
        train(c)
        asked = lambda: next(p for p in c[0].status()["peers"] if not p["self"])["messages"].get("query", 0)  # noqa: E731
        job_map(c[0])
        begin, before = time.monotonic(), asked()
        while time.monotonic() < begin + 5:
            get(c[0], "/api/map")
        asks = asked() - before
        assert asks <= (time.monotonic() - begin) / 1.8 + 1, asks


@case
def map_of_a_node_that_is_away():
    with cluster(2, owners="n0 n1") as c:
        train(c)
        until(lambda: all(o["oldest"] for o in job_map(c[0])["owners"]), what="the other node's versions")
        c[1].stop()
        try:
            until(lambda: [bool(o["oldest"]) for o in job_map(c[0])["owners"]] == [True, False], what="its versions to be forgotten")
        finally:
            c[1].go_on()
        until(lambda: all(o["oldest"] for o in job_map(c[0])["owners"]), what="its versions again")


# ---- in a browser -------------------------------------------------------------------

class Page:
    """The page of a node of a cluster; at its end nothing is left, and no complaint of the browser."""

    def __init__(self, c, node=0):
        self.browser = Browser(c.directory)
        try:
            self.browser.open(f"http://{c[node].options['http']}/")
        except BaseException:
            self.browser.end()
            raise

    def __enter__(self):
        return self.browser

    def __exit__(self, kind, error, trace):
        try:
            said = self.browser.complaints()
        finally:
            self.browser.end()
        if not kind:
            assert not said, said


def reads(browser, *words):
    """Waits until all these words stand on the page."""
    def found():
        text = " ".join(browser.text().split())
        return all(word in text for word in words) and text
    try:
        return until(found, what=f"{words} on the page")
    except AssertionError:
        print("# " + browser.text().replace("\n", "\n# "))
        raise


@case
def training_then_a_lost_rank_then_moving_shards():
    with cluster(2, owners="n0") as c:
        ranks = train(c)
        with Page(c) as browser:
            reads(browser, "work", "✓ running", "step 2", "n0 holds", "version 2: groups 0–4", "0 on n0; 1 on n1", "✓ up", "ZeRO’s formula",
                  "The owners of epoch 0: n0")
            reader(c, 0, "work").do("follow")
            reads(browser, "1 client, 1 version in", "1 held, the newest is 2")
            ranks[1].kill()
            ranks[0].start("train", steps=1, first_step=2, sets=SETS)
            reads(browser, "⚠ waits for rank 1", "Waits for rank 1", "no progress since", "1 away", "⚠ incomplete", "1 waiting")
            successor = c.rank("work", small_layout(), [0, 1], 1, incarnation=1, hold=2, push=2)
            successor.start("train", steps=1, sets=SETS)
            for _ in range(4):
                successor.good(successor.finish())
            finish_all(ranks[:1])
            text = reads(browser, "step 3", "✓ running", "none waiting")
            assert "Waits for" not in text
            c[0].change_owners("add-node", "n1")
            text = reads(browser, "The owners of epoch 1: n0, n1", "○ idle")  # until the ranks call again
            assert "holds" not in text.replace("holds shards", ""), text  # the job is folded
            for r in (ranks[0], successor):
                r.start("train", steps=2, first_step=3, sets=SETS)
            finish_all([ranks[0], successor])
            reads(browser, "step 5", "version 5: groups 0, 2, 4; none of groups 1, 3", "version 5: groups 1, 3", "n1 holds",
                  "1 owner of 2")
            said = browser.complaints()  # while the node starts anew it is not ready
            assert all("503" in line for line in said), said


@case
def a_checkpoint_shows():
    with Place() as place, cluster(2) as c:
        train(c)
        at = c.coordinator("work")
        with Page(c, c.daemons.index(at)) as browser:
            reads(browser, "none since this node coordinates the job")
            at.ctl("checkpoint", "work", place)
            reads(browser, "✓ version 2,")
            assert "none after" not in browser.text()
            at.ctl("checkpoint", "work", place, "--every", "3")
            reads(browser, "every 3 steps, the next of version 5; none after version 2")
            said = [browser.run("return schedule({ version: arguments[0], schedule: arguments[1] })", version,
                                {"every": 3, "next_version": 5, "last_version": 2, "last_unix_s": 0})[0] for version in (8, 9)]
            assert said == ["e", "⚠"], said  # once two in a row are missing


@case
def an_hour_is_remembered():
    """And no more: samples are apart, the newest is always there, and those of a job that is gone go."""
    with cluster(1) as c, Page(c) as browser:
        reads(browser, "on n0")
        for hours in (0.5, 3):
            steps, known = browser.run("""
                for (let s = 0; s <= arguments[0]; s += 2) remember([{ job: 'x', version: s, waited: [] }], 1000 * s);
                return [seen.get('x').map(sample => sample.step), seen.size];""", 3600 * hours)
            assert steps[-1] == 3600 * hours and steps[0] == max(0, 3600 * (hours - 1)) and known == 1, steps
            assert {b - a for a, b in zip(steps, steps[1:-1])} == {6} and len(steps) <= 602, steps
            browser.run("remember([], 0)")
        assert browser.run("return seen.size") == 0


@case
def shares_of_time():
    """Those of zeroctl top: calls are shared by the ranks of this node, votes and updates by its owners, payloads by nobody."""
    with cluster(2) as c:
        ranks = train(c)
        with Page(c) as browser:
            reads(browser, "work", "Nothing ended.")
            for r in ranks:
                r.start("train", steps=20, first_step=2, sets=SETS)
            finish_all(ranks)
            reads(browser, "parts of the time of all ranks on n0")
            text = browser.run("""
                const waited = times => Object.entries(times).map(([what, sum_s]) => ({ for: what, sum_s }));
                remember([{ job: 'x', waited: waited({ push: 9, norm: 9 }) }], 0);
                remember([{ job: 'x', waited: waited({ push: 1, vote: 1, gather: 0, norm: 3 }) }], 90000);
                remember([{ job: 'x', waited: waited({ push: 5, vote: 4, gather: 5, norm: 3, step: 7 }) }], 100000);
                return [...shares({ job: 'x', owners: ['n0', 'n1', 'n0'], sessions: [1, 2] }, 'n0').querySelectorAll('span')]
                  .map(e => e.textContent);""")
            assert text == ["push", "20 %", "vote", "15 %", "gather", "50 %"], text


@case
def a_stopped_node_shows():
    with cluster(2) as c:
        train(c)
        with Page(c) as browser:
            reads(browser, "✓ ok", "all up")
            c[1].kill()
            reads(browser, "✕ error", "✕ ZerodNodeDown: no node that is up reaches n1", "What to do: start zerod there", "⚠ 1 down", "✕ down",
                  "node n1")
            c[0].stop()
            reads(browser, "✕ No answer from zerod", "What is below is of")
            c[0].go_on()
            until(lambda: "No answer from zerod" not in browser.text(), what="an answer")
            browser.complaints()


@case
def hostile_texts_are_texts():
    """Whatever a daemon may say stays text: here every text of its answers is spoilt on the way."""
    with cluster(2, owners="n0") as c:
        ranks = train(c)
        ranks[0].start("train", steps=1, first_step=2, sets=SETS)
        with Page(c) as browser:
            reads(browser, "work", "Waits for")
            before = browser.run("return document.querySelectorAll('main img, main b, script').length")
            browser.run(BE_HOSTILE, HOSTILE)
            reads(browser, "work" + HOSTILE, "n1" + HOSTILE, "running" + HOSTILE, "rank 1 on n1" + HOSTILE)
            assert browser.run("return document.querySelectorAll('main img, main b, script').length") == before == 1


@case
def narrow_dark_and_by_keyboard():
    """No sideways scrolling from 320 pixels on; Tab reaches every job, Enter closes it, and it stays closed and focused."""
    with cluster(2) as c:
        train(c)
        train(c, "x" * 100)
        with Page(c) as browser:
            reads(browser, "work", "x" * 100)
            for width in (320, 360, 1200):
                for dark in (False, True):
                    browser.look(width, 740, dark)
                    assert browser.run("const e = document.scrollingElement; return e.scrollWidth - e.clientWidth") <= 0, width
            where = "const e = document.activeElement; return e.tagName + ' ' + e.textContent"
            reached = []
            for _ in range(3):
                browser.key(TAB)
                reached.append(browser.run(where))
            assert reached[0] == "A Skip to the jobs" and [r.split()[0] for r in reached[1:]] == ["SUMMARY"] * 2, reached
            browser.key("\ue007")
            browser.run("document.activeElement.scrollTop = 0; window.before = document.querySelectorAll('.cards')[0].textContent")
            until(lambda: browser.run("return document.querySelectorAll('.cards')[0].textContent != window.before"), what="a new reading")
            assert browser.run(where) == reached[2]
            assert browser.run("return [...document.querySelectorAll('details')].map(d => d.open)") == [True, False]


def contrast(a, b):
    def light(colour):
        parts = [v / 255 for v in colour]
        return sum(w * (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4) for w, v in zip((0.2126, 0.7152, 0.0722), parts))
    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@case
def texts_can_be_read():
    """The contrast of all texts is at least 4.5 (WCAG 2.1, 1.4.3), by day and in the dark; every picture has a name."""
    script = """
        const numbers = c => c.match(/[\\d.]+/g).map(Number), seen = [];
        for (const e of document.querySelectorAll('body *')) {
          if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility() || e.closest('noscript')) continue;
          let under = e, back = [0, 0, 0, 0];
          for (; under && (back.length === 4 && back[3] === 0); under = under.parentElement)
            back = numbers(getComputedStyle(under).backgroundColor);
          seen.push([e.textContent.slice(0, 40), numbers(getComputedStyle(e).color).slice(0, 3), back.slice(0, 3)]);
        }
        return seen;"""
    with cluster(1) as c:
        train(c, placement=(0,))
        with Page(c) as browser:
            reads(browser, "work", "holds")
            for dark in (False, True):
                browser.look(1200, 1000, dark)
                found = browser.run(script)
                assert len(found) > 50
                poor = [(text, round(contrast(a, b), 2)) for text, a, b in found if contrast(a, b) < 4.5]
                assert not poor, (dark, poor)
            tree = browser.developer("Accessibility.getFullAXTree")["nodes"]
            nameless = [n["role"]["value"] for n in tree if not n["ignored"] and not n.get("name", {}).get("value")
                        and n["role"]["value"] in ("image", "img", "meter", "progressbar", "textbox", "button", "link", "DisclosureTriangle")]
            assert not nameless, nameless


@case
def token_is_asked_for():
    """The page comes without the token and says nothing; its answers come with it.  SIGHUP reads a new token."""
    def write(token):
        with open(f"{c.directory}/token", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(token + "\n")
    first, second = "ab" * 32, "cd" * 32
    with Cluster(1, start=False) as c:
        write(first)
        c[0].options.update(http=f"127.0.0.1:{free_ports(1)[0]}", http_token_file=f"{c.directory}/token")
        c.start()
        place = c[0].options["http"]
        assert "n0" not in request(place, "/")[2] and request(place, "/api/map")[0] == 401
        with Page(c) as browser:
            text = reads(browser, "wants the token")
            assert "No jobs" not in text
            for shown, answer in ((second, "that is not the token"), (first, "on n0")):
                browser.run("document.getElementById('token').value = arguments[0]; document.querySelector('#ask button').click()", shown)
                reads(browser, answer)
            assert "wants the token" not in browser.text()
            write(second)
            c[0].process.send_signal(1)
            reads(browser, "wants the token")
            assert all("401" in line for line in browser.complaints())
        assert request(place, "/metrics", Authorization=f"Bearer {first}")[0] == 401
        assert request(place, "/metrics", Authorization=f"Bearer {second}")[0] == 200
        os.remove(f"{c.directory}/token")
        c[0].process.send_signal(1)
        until(lambda: "zerod keeps the token it has" in c[0].log(), what="the refusal")
        assert request(place, "/metrics", Authorization=f"Bearer {second}")[0] == 200


@case
def one_tick_goes_on():
    with cluster(1) as c, Page(c) as browser:
        reads(browser, "on n0")
        browser.run(TICKS)
        until(lambda: browser.run("return window.came") == 9, what="the answers to three ticks")
        until(lambda: browser.run("return window.waits"), what="the next tick")
        assert browser.run("return window.waits") == 1


if __name__ == "__main__":
    main()
