#!/usr/bin/env python3
"""Rules, their tests, the runbook and the dashboard: each names only what is there.

usage: rules.py SOURCE_ROOT
Without promtool (package prometheus) everything but promtool's own checks runs.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = sys.argv[1]
HOME = "/usr/share/doc/zerod/deploy/prometheus/README.md"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def metrics():
    """Names of all series, from the columns of fields.h."""
    found = set()
    for process, kind, name in re.findall(r'\b(PROCESS_)?(COUNTER|GAUGE|INFO|HISTOGRAM)\(\s*"(\w+)"\)', read("daemon/face/status/fields.h")):
        suffixes = ("_bucket", "_sum", "_count") if kind == "HISTOGRAM" else ("",)
        found.update(f"{process.lower() or 'zerod_'}{name}{suffix}" for suffix in suffixes)
    return found


def metrics_are_there(rules, known):
    dashboard = read("deploy/grafana/zerod.json")
    texts = {"rules": rules, "tests": read("deploy/prometheus/zerod.rules.test.yml"), "dashboard": dashboard,
             "runbook": read("deploy/prometheus/README.md")}
    records = set(re.findall(r"record: (\S+)", rules))
    for where, text in texts.items():
        named = set(re.findall(r"(?<![:\w])(?:zerod|process)_\w+", text))
        assert named <= known, f"{where}: no such metric: {sorted(named - known)}"
        recorded = set(re.findall(r"\b\w+:zerod_\w+:\w+", text))
        assert recorded <= records, f"{where}: no such record: {sorted(recorded - records)}"


def dashboard_is_whole():
    """It begins with an overview; a node or a job can be chosen, and every query heeds one of them.  Returns all queries."""
    text = read("deploy/grafana/zerod.json")
    whole = json.loads(text)
    panels, variables = whole["panels"], {v["name"] for v in whole["templating"]["list"]}
    assert len({p["id"] for p in panels}) == len(panels)
    assert [p["title"] for p in panels if p["type"] == "row"][0] == panels[0]["title"] == "Overview"
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == variables == {"datasource", "job", "node"}, variables
    queries = [t["expr"] for p in panels if p["type"] != "row" for t in p["targets"]]
    for query in queries:
        alone = re.sub(r"and on \(instance\) zerod_build_info$", "", query)
        for name, labels in re.findall(r"\b((?:zerod|process)_\w+)\b(?!:)({.*?})?", alone):
            assert re.search(r'(job|node)=~"\$\1"', labels), (name, query)
    return queries


def alerts_have_tests_and_sections(rules):
    alerts = re.findall(r"alert: (\w+)", rules)
    links = re.findall(r"runbook_url: (\S+)", rules)
    assert links == [f"{HOME}#{a.lower()}" for a in alerts], links
    sections = re.findall(r"^### (\w+)$", read("deploy/prometheus/README.md"), re.M)
    assert sections == alerts, set(sections) ^ set(alerts)
    tests = read("deploy/prometheus/zerod.rules.test.yml")
    for alert in alerts:
        cases = re.findall(rf"alertname: {alert}\n +eval_time: \w+\n +exp_alerts:(.*)", tests)
        assert cases == [" []", ""], f"{alert}: wants a time at which it is silent and one at which it fires: {cases}"


def verdicts_are_alerts(rules):
    """zeroctl status names its findings as alerts are named, with their severity."""
    alerts = dict(re.findall(r"alert: (\w+)\n(?:.*\n)*?.*severity: (\w+)", rules))
    rows = dict(re.findall(r'\{ "(Zerod\w+)",\s+"(\w+)",', read("daemon/face/status/verdict.c")))
    assert rows and rows == {name: alerts[name].replace("critical", "error") for name in rows}, rows
    unknown = re.search(r"Of ([^.]*),\s+which\s+need", read("deploy/prometheus/README.md"))
    assert set(re.findall(r"Zerod\w+", unknown.group(1))) == set(alerts) - set(rows), set(alerts) - set(rows)


def promtool(*arguments):
    r = subprocess.run(["promtool", *arguments], cwd=os.path.join(ROOT, "deploy/prometheus"), capture_output=True, text=True,
                       timeout=100, check=False)
    assert r.returncode == 0, r.stdout + r.stderr


def main():
    rules = read("deploy/prometheus/zerod.rules.yml")
    metrics_are_there(rules, metrics())
    alerts_have_tests_and_sections(rules)
    verdicts_are_alerts(rules)
    queries = dashboard_is_whole()
    if shutil.which("promtool"):
        promtool("check", "rules", "zerod.rules.yml")
        promtool("test", "rules", "zerod.rules.test.yml")
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
            json.dump({"groups": [{"name": "dashboard", "rules": [
                {"record": f"query:{i}", "expr": q.replace("$__rate_interval", "5m")} for i, q in enumerate(queries)]}]}, f)
            f.flush()
            promtool("check", "rules", f.name)
    else:
        print("promtool is not here: rules were not run")


if __name__ == "__main__":
    main()
