"""Slurm on loopback: munged, slurmctld and a slurmd for each node of a Cluster, in the cluster's directory.

Node n0 of Slurm has zerod n0 of the cluster, which deploy/slurm/prolog.sh starts: the cluster itself does not.
"""
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess

from cluster import REPLY_S, SLOW, Cluster, Tools, end_process, spawn, until
from harness import Skip
from ports import free_ports

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
HERE = f"{ROOT}/deploy/slurm"
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port}
AuthInfo=socket={here}/munge
StateSaveLocation={here}/slurmctld
SlurmdSpoolDir={here}/%n.slurmd
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/%n.slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,nohold_on_prolog_fail
PrologFlags=Alloc
Prolog={here}/prolog
Epilog={here}/epilog
TaskProlog={here}/task_prolog
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
KillWait=2
"""


def need_slurm():
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        raise Skip(f"needs {', '.join(missing)} (packages munge, slurm-client, slurmctld, slurmd)")
    if os.geteuid():
        raise Skip("needs root, as slurmd does")
    if Tools.gpt == "-":
        raise Skip("needs zerod-gpt, which this build has not (libopenblas-dev)")


class Slurm(Cluster):
    """options: of each node's prolog and epilog, beside those that start zerod."""

    def __init__(self, nodes=2, **options):
        need_slurm()
        numbers = free_ports(nodes + nodes + 1)
        self.port, self.slurmd_ports, self.services = numbers[0], numbers[1:nodes + 1], []
        super().__init__(nodes, start=False, per_node={i: {"http": f"127.0.0.1:{p}"} for i, p in enumerate(numbers[nodes + 1:])})
        try:
            os.mkdir(f"{self.directory}/bin")
            for tool in (Tools.zeroctl, Tools.gpt):
                os.symlink(os.path.abspath(tool), f"{self.directory}/bin/{os.path.basename(tool)}")
            for d in self.daemons:
                d.configure()
                self.set_options(d, **options)
            self.start_slurm()
        except BaseException:
            self.show()
            self.end()
            raise

    # ---- the files ----

    def write(self, name, text, mode=0o644):
        with open(os.open(f"{self.directory}/{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "w",
                  encoding="utf-8") as f:
            f.write(text)

    def set_options(self, daemon, **options):
        """What /etc/zerod/slurm.sh says on that node."""
        start = (f"{os.path.abspath(Tools.zerod)} --config {daemon.config} >>{daemon.log_path} 2>&1 & "
                 f"echo $! >>{daemon.directory}/{daemon.name}.pids")
        named = {"start": start, "state_dir": f"{self.directory}/{daemon.name}.slurm", "start_s": 30 * SLOW, **options}
        marks = {name: os.environ[name] for name in os.environ
                 if name.startswith(("UCX_", "TESTS_", "ASAN_", "LSAN_", "UBSAN_"))}
        exported = {"PATH": f"{self.directory}/bin:{PATH}", "ZEROD_SOCKET": daemon.socket,
                    "SLURM_CONF": f"{self.directory}/slurm.conf", **marks}
        self.write(f"{daemon.name}.sh", "".join(f"{name}={shlex.quote(str(v))}\n" for name, v in named.items())
                   + "".join(f"export {name}={shlex.quote(v)}\n" for name, v in exported.items()))

    def start_slurm(self):
        host = socket.gethostname().split(".")[0]
        nodes = "".join(f"NodeName={d.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
                        for d, port in zip(self.daemons, self.slurmd_ports))
        self.write("slurm.conf", CONFIGURATION.format(here=self.directory, host=host, port=self.port) + nodes
                   + "PartitionName=train Nodes=ALL Default=YES MaxTime=10\n")
        for part in ("prolog", "epilog"):
            self.write(part, "#!/bin/sh\n"
                       f"exec {HERE}/{part}.sh {self.directory}/$SLURMD_NODENAME.sh 2>>{self.directory}/scripts.log\n", 0o755)
        # on one host, nodes cannot have their sockets at the same path
        self.write("task_prolog", f"#!/bin/sh\necho export ZEROD_SOCKET={self.directory}/$SLURMD_NODENAME.sock\n", 0o755)
        self.write_key(f"{self.directory}/munge.key")
        here = self.directory
        self.service("munged", "--foreground", "--force", f"--socket={here}/munge", f"--key-file={here}/munge.key",
                     f"--log-file={here}/munged.file", f"--pid-file={here}/munged.pid", f"--seed-file={here}/munged.seed")
        self.await_service(lambda: os.path.exists(f"{here}/munge"))
        self.service("slurmctld", "-D", "-f", f"{here}/slurm.conf")
        for d in self.daemons:
            self.service("slurmd", "-D", "-N", d.name, "-f", f"{here}/slurm.conf", name=f"slurmd-{d.name}")
        self.await_service(lambda: all(self.node(d).startswith("IDLE ") for d in self.daemons))

    def service(self, program, *arguments, name=None):
        with open(f"{self.directory}/{name or program}.log", "ab") as log:
            self.services.append(spawn([shutil.which(program, path=PATH), *arguments], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, cwd=self.directory))

    def await_service(self, condition):
        """What the services said is shown if one of them ends."""
        ended = until(lambda: [s for s in self.services if s.poll() is not None] or (condition() and [None]), what="Slurm")[0]
        assert not ended, f"{ended.args[0]} ended with status {ended.returncode}"

    # ---- Slurm's programs ----

    def run(self, *command, user=None):
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S,
                              check=False, cwd=self.directory, user=user,
                              env={**os.environ, "PATH": f"{self.directory}/bin:{PATH}",
                                   "SLURM_CONF": f"{self.directory}/slurm.conf"})

    def slurm(self, *command, user=None):
        r = self.run(*command, user=user)
        assert r.returncode == 0, f"{command}: {r.returncode}: {r.stdout}{r.stderr}"
        return r.stdout

    def submit(self, *command):
        """Returns the job's id."""
        return self.slurm("sbatch", "--parsable", "--output", "%j.out", *command).strip()

    def node(self, daemon):
        """State and reason."""
        state, _, reason = self.run("sinfo", "-h", "-n", daemon.name, "-o", "%T %E").stdout.rstrip("\n").partition(" ")
        return f"{state.upper()} {reason}"

    def state(self, job):
        """Of a job, while its nodes are not free again too."""
        return self.run("scontrol", "-o", "show", "job", job).stdout.partition(" JobState=")[2].partition(" ")[0]

    def ended(self, job):
        """Waits until the job has ended and its epilogs have; its state."""
        until(lambda: self.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), REPLY_S,
              what=f"the end of Slurm's job {job}")
        return self.state(job)

    def output(self, job):
        return self.text(f"{job}.out")

    def scripts(self):
        """What prologs and epilogs said."""
        return self.text("scripts.log")

    def text(self, name):
        try:
            with open(f"{self.directory}/{name}", encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    # ---- the daemons that prologs started ----

    def pids(self, daemon):
        """Of all that were started, in order."""
        return [int(pid) for pid in self.text(f"{daemon.name}.pids").split()]

    def runs(self, pid, daemon):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                return daemon.config in f.read().split("\0")
        except FileNotFoundError:
            return False

    def kill_zerod(self, daemon, number=signal.SIGKILL):
        for pid in self.pids(daemon):
            if self.runs(pid, daemon):
                os.kill(pid, number)
                until(lambda pid=pid: not self.runs(pid, daemon), what=f"the end of {daemon.name}")

    # ---- the end ----

    def show(self):
        super().show()
        names = sorted(n for n in os.listdir(self.directory) if n.endswith((".log", ".out")) and n[:-4] not in
                       {d.name for d in self.daemons})
        for name in names:
            print(f"# --- {name}")
            for line in self.text(name).splitlines()[-25:]:
                print("# " + line)

    def left(self):
        """What Slurm's daemons have started: steps, their tasks, prologs and epilogs."""
        mark, found = f"SLURM_CONF={self.directory}/slurm.conf".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                continue
        return found

    def end(self):
        for service in reversed(self.services):
            end_process(service, 10 * SLOW)
        for d in self.daemons:
            self.kill_zerod(d, signal.SIGTERM)
        try:
            for pid in self.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: not self.left(), what="the end of Slurm's jobs")
        finally:
            super().end()
