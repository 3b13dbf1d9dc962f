#!/usr/bin/env python3
"""Programs run from where `meson install` put them, without build tree, LD_LIBRARY_PATH or ldconfig, as the documents say."""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SLOW, Tools, end_process, spawn, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402
from ports import free_ports  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
TEXT = b"".join(b"%d and %d make %d; " % (a, b, a + b) for a in range(40) for b in range(0, 40, 3))
SMALL = ("--steps", "2", "--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "2",
         "--eval-windows", "4", "--threads", "1")
FUNCTION = re.compile(r"\bzero_[a-z_]+")


@contextlib.contextmanager
def installed():
    """Installs into a temporary directory; the prefix in it."""
    tree = os.path.dirname(os.path.dirname(os.path.abspath(Tools.zerod)))
    meson = shutil.which("meson")
    if not meson or not os.path.exists(f"{tree}/build.ninja"):
        raise Skip("needs meson and a build tree")
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        done = subprocess.run([meson, "install", "-C", tree, "--no-rebuild", "--destdir", f"{directory}/root"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        page, = glob.glob(f"{directory}/root/**/man3/zero.3", recursive=True)
        yield os.path.abspath(f"{page}/../../../..")


def environment(prefix, **variables):
    """Environment of a user who has the programs in PATH."""
    left = {k: v for k, v in os.environ.items() if not k.startswith(("ZEROD_", "LD_LIBRARY_PATH"))}
    return {**left, "PATH": f"{prefix}/bin:{os.environ['PATH']}", **variables}


def run(prefix, *command, **variables):
    done = subprocess.run(command, env=environment(prefix, **variables), cwd=prefix, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_text(prefix):
    if Tools.gpt == "-":
        raise Skip("the example is not built")
    with open(f"{prefix}/text", "wb") as f:
        f.write(TEXT)


@case
def by_hand_as_the_document_says():
    with installed() as prefix:
        write_text(prefix)
        place = {"ZEROD_SOCKET": f"{prefix}/sock", "ZEROD_STATE_DIR": f"{prefix}/states", "ZEROD_USER": "root"}
        with open(f"{prefix}/log", "wb") as log:
            daemon = spawn(["zerod"], env=environment(prefix, **place), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: os.path.exists(f"{prefix}/sock"), what="the daemon's socket")
            assert "validation loss" in run(prefix, "zerod-gpt", "--data", "text", *SMALL, **place)
            assert "gpt" in run(prefix, "zeroctl", "status", **place)
            assert "100 nodes: " in run(prefix, "zeroctl", "simulate", "--nodes", "100")
        finally:
            assert end_process(daemon, 15 * SLOW)


@case
def local_cluster():
    with installed() as prefix:
        write_text(prefix)
        out = run(prefix, "zerod-local-cluster", "--nodes", "2", "--ranks", "2", "zerod-gpt", "--data", "text", *SMALL)
        assert "validation loss" in out, out


@case
def local_cluster_of_sixteen():
    """The list of 16 peers is one long line of the configuration file."""
    if SLOW > 1:
        raise Skip("16 daemons with sanitizers")
    with installed() as prefix:
        run(prefix, "zerod-local-cluster", "--nodes", "16", "--ranks", "1", "true")


@case
def local_cluster_runs_python():
    """With the installed package and the installed library."""
    if SLOW > 1:
        raise Skip("a plain Python cannot load a libzero with sanitizers")
    with installed() as prefix:
        with open(f"{prefix}/show.py", "w", encoding="ascii") as f:
            f.write("import zerod, zerod._library as l; print(zerod.__file__); print(l.library()._name)\n")
        out = run(prefix, "zerod-local-cluster", "show.py", ZEROD_PYTHON=sys.executable,
                  PYTHONDONTWRITEBYTECODE="1")
        assert all(os.path.realpath(line).startswith(prefix) for line in out.split()), out


@case
def local_cluster_with_keep():
    with installed() as prefix:
        with open(f"{prefix}/log", "wb") as log:
            script = spawn(["zerod-local-cluster", "--nodes", "2", "--keep", "true"], env=environment(prefix),
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: b"are kept" in open(f"{prefix}/log", "rb").read(), what="the message that nodes are kept")
            directory, = glob.glob(f"/dev/shm/zerod-local-cluster.{script.pid}.*")
            run(prefix, "zeroctl", "--socket", f"{directory}/b.sock", "ping")
        finally:
            script.send_signal(signal.SIGINT)
            assert script.wait(30 * SLOW) == 0, script.returncode
        assert not os.path.exists(directory)


# Programs in the PATH of a machine of the documents, in place of those that would change this one.
STANDINS = {
    "sudo": 'exec "$@"',
    "scp": 'cp "$1" "../${2%:}"',
    "systemctl": 'echo "$@" >>"$HOME/asked"',
    "zerod": """set -- --config "$HOME/etc/zerod.conf" "$@"
grep -q ^state_dir "$HOME/etc/zerod.conf" || set -- --state-dir "$HOME/states" "$@"
PATH=${PATH#*:} exec zerod "$@\"""",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Machine:
    """Runs what the documents have a person type on machine NAME."""

    def __init__(self, prefix, name, ports):
        self.name, self.home = name, f"{prefix}/{name}"
        self.daemon = self.trainer = None
        for directory in ("etc", "moved", "bin"):
            os.makedirs(f"{self.home}/{directory}", 0o700)
        for tool, script in STANDINS.items():
            with open(f"{self.home}/bin/{tool}", "w", encoding="ascii") as f:
                f.write(f"#!/bin/sh -e\n{script}\n")
            os.chmod(f"{self.home}/bin/{tool}", 0o700)
        # messages that take their time keep the job in training, on any machine, until the kill comes
        self.place = environment(prefix, HOME=self.home, ZEROD_NODE=name, ZEROD_SOCKET=f"{self.home}/sock", ZEROD_HTTP="",
                                 ZEROD_MEMBERSHIP_DIR=f"{self.home}/votes", ZEROD_USER="root", ZEROD_THREADS="1", ZEROD_DELAY_MS="5")
        self.place["PATH"] = f"{self.home}/bin:{self.place['PATH']}"
        self.here = {"/etc/zerod": f"{self.home}/etc", "/etc/systemd/system": f"{self.home}/units", "-o zerod ": "",
                     "/dev/shm/zerod": f"{self.home}/states", "/mnt/zerod": f"{self.home}/moved",
                     "/usr/share/common-licenses/GPL-3": f"{prefix}/text", "zerod-gpt ": f"zerod-gpt {' '.join(SMALL[2:])} ",
                     "--steps 2000": "--steps 200",  # the page has a person change shells meanwhile
                     "zeroctl wait": f"zeroctl --timeout {REPLY_S} wait",
                     **{f"10.0.0.{i + 1}:7600": f"127.0.0.1:{port}" for i, port in enumerate(ports)}}

    def translated(self, text):
        return re.sub("|".join(map(re.escape, self.here)), lambda found: self.here[found[0]], text)

    def output(self, name):
        with open(f"{self.home}/{name}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def begin(self, name, command):
        """Its output is output(NAME)."""
        with open(f"{self.home}/{name}", "ab") as out:
            return spawn(["bash", "-c", f"exec {self.translated(command)}"], env=self.place, cwd=self.home,
                         stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def run(self, commands):
        """What the commands print."""
        done = subprocess.run(["bash", "-e", "-c", self.translated(commands)], env=self.place, cwd=self.home,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3 * REPLY_S, check=False)
        assert done.returncode == 0, f"on {self.name}: {commands}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        if os.path.exists(f"{self.home}/asked"):
            with open(f"{self.home}/asked", encoding="ascii") as f:
                asked = [line.split() for line in f]
            os.unlink(f"{self.home}/asked")
            for verb, *words in asked:
                self.systemctl(verb, words)
        return done.stdout

    def systemctl(self, verb, words):
        assert verb == "daemon-reload" or words[-1].startswith("zerod"), words
        assert verb != "kill" or "--signal=KILL" in words, words
        if verb == "reload":
            before = self.output("log").count("read the key files again")
            self.daemon.send_signal(signal.SIGHUP)
            until(lambda: self.output("log").count("read the key files again") > before, what="the reload")
            verb = "kill"  # links that stand keep their keys: those made after a fault have to find one, too
        if verb == "kill":
            self.daemon.kill()
            self.daemon.wait()
        elif verb in ("restart", "stop"):
            self.end()
        if verb in ("restart", "start", "kill"):
            self.daemon = self.begin("log", "zerod")

    def reaches_all(self):
        return subprocess.run(["zeroctl", "ping"], env=self.place, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=REPLY_S, check=False).returncode == 0

    def end(self):
        daemon, self.daemon = self.daemon, None
        assert not daemon or end_process(daemon, 15 * SLOW), self.output("log")


@contextlib.contextmanager
def two_machines():
    with installed() as prefix:
        write_text(prefix)
        ports = free_ports(2)
        machines = [Machine(prefix, name, ports) for name in "ab"]
        try:
            yield machines
        except BaseException:
            for machine in machines:
                if os.path.exists(f"{machine.home}/log"):
                    print(f"# --- log of {machine.name}\n{machine.output('log')[-4000:]}")
            raise
        finally:
            for machine in machines:
                if machine.trainer and machine.trainer.poll() is None:
                    machine.trainer.kill()
                    machine.trainer.wait()
                machine.end()


def steps_of(page, title):
    """(machines, commands, what a person sees) of a section."""
    with open(f"{ROOT}/{page}", encoding="utf-8") as f:
        section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", f.read(), re.MULTILINE | re.DOTALL)[1]
    steps, end = [], 0
    for fence in FENCE.finditer(section):
        if fence[1] == "sh":
            where = re.findall(r"On\s+(`a`|`b`|both)", section[end:fence.start()])[-1]
            steps.append([where.strip("`").replace("both", "ab"), fence[2], []])
        else:
            steps[-1][2] += fence[2].splitlines()
        end = fence.end()
    return steps


def normal(text):
    """Without what differs from run to run: hashes, numbers with their units, the width of columns."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "H", text)
    text = re.sub(r"\d[\d.]*(e[-+]\d+)?( ([kKMGT]i?B?|B|us|ms|s|min|h)\b)?", "N", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def is_shown(machine, shown, printed):
    """The lines that the page shows come in this order; where it has ... there may be others."""
    lines = iter(normal(line) for line in printed.splitlines())
    for line in shown:
        wanted = normal(machine.translated(line))
        assert line == "..." or any(wanted == got for got in lines), f"'{line}' is not in:\n{printed}"


def follow(machines, steps):
    """Does what the page says; trainers run beside the rest."""
    beside = []
    for where, commands, shown in steps:
        for machine in [m for m in machines if m.name in where]:
            if "zerod-gpt" in commands:
                machine.trainer = machine.begin("trainer", commands)
                beside.append((machine, shown))
                continue
            printed = machine.run(commands)
            is_shown(machine, shown, printed)
            if "checksum" in commands:
                others = [m.run("zeroctl checksum first") for m in machines]
                assert all(printed.endswith(other) for other in others), (printed, others)
            if all(m.daemon for m in machines):  # one that was restarted first reaches those that are as before
                until(machine.reaches_all, what=f"links of {machine.name}")
    for machine, shown in beside:
        assert machine.trainer.wait(REPLY_S) == 0, machine.output("trainer")
        is_shown(machine, shown, machine.output("trainer"))


@case
def a_cluster_of_two_machines_as_the_document_says():
    with two_machines() as machines:
        steps = steps_of("deploy/README.md", "A cluster of two machines")
        assert len(steps) == 10, steps
        follow(machines, steps)


@case
def maintenance_as_the_document_says():
    """Without mirrors, which would bring back what a wrong command has lost."""
    with two_machines() as machines:
        start = [step for step in steps_of("deploy/README.md", "A cluster of two machines") if "first" not in step[1]]
        follow(machines, [(where, commands.replace("mirror = 1\n", ""), []) for where, commands, _ in start])
        machines[0].run("zerod-gpt --data /usr/share/common-licenses/GPL-3 --job first --steps 2")
        before = machines[0].run("zeroctl checksum first")
        for title in ("Power a machine off", "Rotate the key", "Move the states"):
            follow(machines, steps_of("deploy/docs/maintenance.md", title))
            assert machines[0].run("zeroctl checksum first") == before, title
        assert os.listdir(f"{machines[0].home}/moved") and not os.path.exists(f"{machines[0].home}/key.next")


@case
def every_function_has_a_page():
    with open(f"{ROOT}/client/lib/libzero.map", encoding="ascii") as f:
        exported = set(FUNCTION.findall(f.read()))
    with installed() as prefix:
        pages = f"{prefix}/share/man/man3"
        with open(f"{pages}/zero.3", encoding="utf-8") as f:
            named = set(FUNCTION.findall(f.read()))
        assert exported <= named, f"zero.3 omits {exported - named}"
        for function in exported:
            with open(f"{pages}/{function}.3", encoding="utf-8") as f:
                text = f.read()
            if text.startswith(".so "):
                with open(f"{prefix}/share/man/{text.split()[1]}", encoding="utf-8") as f:
                    text = f.read()
            synopsis = text.split(".SH SYNOPSIS")[1].split(".SH DESCRIPTION")[0]
            assert re.search(rf"^[a-z][a-z0-9_ *]*\b{function}\(", synopsis, re.MULTILINE), f"{function}.3 has no prototype"
            assert ".SH RETURN VALUE" in text and (".SH ERRORS" in text) == ("enum zero_status" in text), function


@case
def a_page_is_its_own_functions():
    """Formulas keep their lines, which are read where man is, and no page has the text of the function before."""
    with installed() as prefix:
        pages = f"{prefix}/share/man/man3"
        text = {name: open(f"{pages}/{name}.3", encoding="utf-8").read() for name in ("zero", "zero_release", "zero_step")}
        assert "gather a group" not in text["zero_release"] and "Ends one zero_fetch()" in text["zero_release"]
        assert all(f".SH {title}\n" in text["zero_step"] for title in ("ERRORS", "EXAMPLES")), text["zero_step"]
        assert "int main(void)" in text["zero"]
        if shutil.which("man"):
            shown = run(prefix, "man", "-l", f"{pages}/zero_step.3", MANWIDTH="120")
            assert re.search(r"g\^2\n +p = p - lr / \(1 - beta1\^t\) m", shown), shown


@case
def documents():
    with installed() as prefix:
        pages = f"{prefix}/share/doc/zerod"
        assert os.path.getsize(f"{pages}/LICENSE")
        for page in glob.glob(f"{pages}/**/*.md", recursive=True):
            with open(page, encoding="utf-8") as f:
                for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", f.read()):
                    assert os.path.exists(os.path.join(os.path.dirname(page), target)), f"{page}: {target} is not installed"
        unit, = glob.glob(f"{prefix}/**/zerod.service", recursive=True)
        with open(unit, encoding="utf-8") as f:
            start = re.search(r"^ExecStart=(\S+)", f.read(), re.MULTILINE).group(1)
        assert start.endswith("/bin/zerod") and os.access(f"{prefix}/bin/zerod", os.X_OK), start


if __name__ == "__main__":
    main()
