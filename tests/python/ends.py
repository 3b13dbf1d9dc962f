#!/usr/bin/env python3
"""How a client ends: close, the end of its process, exceptions, signals, forks, a lost daemon; and
threads that share one."""
import contextlib
import json
import os
import re
import signal
import threading

from common import REPLY_S, SETS, Cluster, attached, output, python, raises, small_layout, together, zerod
from cluster import until
from harness import case, cases_of, main

RUN = "0a1b2c3d-0a1b-4a1b-8a1b-0a1b2c3d4e5f"  # a run id as torchrun makes them
ATTACH = """
import os, signal, sys
import zerod
signal.signal(signal.SIGINT, signal.default_int_handler)
layout = zerod.Layout()
layout.group("g", "fp32")
layout.tensor(0, "w", [100])
"""


def jobs(cluster):
    return [job["job"] for job in cluster[0].status()["jobs"]]


def one_tensor():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    layout.tensor(0, "w", [100])
    return layout


def calls(client):
    """Every call there is."""
    return {
        "attach": lambda: client.attach(small_layout()), "fetch": lambda: client.fetch(0),
        "prefetch": lambda: client.prefetch(0), "release": lambda: client.release(0), "grad": lambda: client.grad(0),
        "push": lambda: client.push(0), "push_present": lambda: client.push(0, bytes(3)), "norm": lambda: client.norm(),
        "step": lambda: client.step(SETS), "get": lambda: client.get(0, "master", 0, 1, bytearray(4)),
        "put": lambda: client.put(0, "master", 0, 1, bytearray(4)), "query": lambda: client.query("jobs"),
        "fileno": lambda: client.fileno(), "version": lambda: client.version, "loss_scale": lambda: client.loss_scale}


# ---- waiting ---------------------------------------------------------------------------

@case
def a_long_wait_is_told_to_who_asked_for_it():
    texts, quiet = [], []
    with Cluster(1) as c, contextlib.ExitStack() as stack:
        told, silent, late = [stack.enter_context(zerod.connect("job", rank=r, world_size=3, socket=c[0].socket, timeout=REPLY_S))
                              for r in range(3)]
        told.on_wait(texts.append)
        silent.on_wait(quiet.append)
        silent.on_wait(None)

        def comes_late():
            until(lambda: texts, what="words")
            late.attach(one_tensor())
        together(lambda: told.attach(one_tensor()), lambda: silent.attach(one_tensor()), comes_late)
    assert not quiet and re.fullmatch(r"rank 0 of job 'job' has waited \d+ s for rank 2: to attach", texts[0]), (texts, quiet)


# ---- closing -------------------------------------------------------------------------

@case
def closing_twice_is_allowed():
    with attached() as (_, client):
        assert not client.closed
        client.close()
        client.close()
        assert client.closed and "rank 0 of 1" in repr(client)


@cases_of(calls(None))
def closed_client_refuses(name):
    with attached() as (_, client):
        client.close()
        with raises(zerod.Closed, "close()"):
            calls(client)[name]()


@case
def lost_daemon_is_an_error():
    with Cluster(1) as cluster:
        client = zerod.connect("job", socket=cluster[0].socket, timeout=1)
        client.attach(small_layout())
        cluster[0].process.kill()
        cluster[0].process.wait()
        for _ in range(2):
            with raises(zerod.Deadline, "cannot connect"):
                client.step(SETS)
        client.close()


@case
def call_to_a_stopped_daemon_times_out():
    with Cluster(1) as cluster:
        client = zerod.connect("job", socket=cluster[0].socket, timeout=1)
        client.attach(small_layout())
        cluster[0].process.send_signal(signal.SIGSTOP)
        with raises(zerod.Deadline, "did not answer"):
            client.step(SETS)
        with raises(zerod.Deadline, "rank 0 into job 'job'"):
            client.fetch(0)
        client.close()


# ---- the job of a process that is alone ------------------------------------------------

@case
def own_job_ends_with_close():
    with Cluster(1) as cluster:
        first, second = (zerod.connect(socket=cluster[0].socket) for _ in range(2))
        for client in (first, second):
            client.attach(small_layout())
        assert sorted(jobs(cluster)) == sorted([first.job, second.job]) and first.job != second.job
        first.close()
        assert jobs(cluster) == [second.job]
        second.close()
        assert not jobs(cluster)


@cases_of({"end": "", "exit": "sys.exit(3)", "exception": "raise ValueError('mine')",
           "broken_off": "client._break('why')"}.items(), "{0[0]}")
def own_job_ends_with_its_process(values):
    with Cluster(1) as cluster:
        status, out, err = output(python(ATTACH + "client = zerod.connect()\nclient.attach(layout)\n"
                                         "print(client.query('jobs')['jobs'][0]['job'] == client.job)\n"
                                         + values[1], cluster))
        assert out == "True\n" and status == {"exit": 3, "exception": 1}.get(values[0], 0), (status, out, err)
        assert ("ValueError" in err) if values[0] == "exception" else not err, err
        assert not jobs(cluster)


@case
def named_job_outlives_its_process():
    with Cluster(1) as cluster:
        status, _, err = output(python(ATTACH + "zerod.connect('named').attach(layout)", cluster))
        assert status == 0 and not err, err
        assert jobs(cluster) == ["named"]


# ---- the end of a process that has a rank --------------------------------------------

ENDS = {"end": "", "exit_0": "sys.exit(0)", "exit_3": "sys.exit(3)", "exception": "raise ValueError('mine')",
        "killed": "os.kill(os.getpid(), signal.SIGKILL)", "os_exit": "os._exit(0)",
        "in_a_call": "threading.Thread(target=client.step, args=[[]], daemon=True).start()\n"
                     "with zerod.connect(rank=zerod.OBSERVER) as o:\n"
                     "    while not o.query('status')['jobs'][0]['waiting']: time.sleep(0.01)"}
IN_ORDER = ("end", "exit_0")


def trainer(cluster, name, rank=0, world=1, first="", more="", **environment):
    """A process that attaches as torchrun's worker, and ends that way."""
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_WORLD_SIZE": 1, **environment}
    return python(f"{first}{ATTACH}import threading, time\nos.environ.update({ {k: str(v) for k, v in place.items()} })\n"
                  f"client = zerod.connect()\nclient.attach(layout)\n{more}\n{ENDS[name]}\n", cluster)


def ended(cluster, job, left, lost):
    """The log tells how many ranks left and were lost; the job's sessions are over."""
    until(lambda: [cluster[0].log().count(t) for t in (" has left", " was lost")] == [left, lost],
          what=f"{left} ranks that left {job} and {lost} lost ones in\n{cluster[0].log()}")


@cases_of(ENDS)
def a_process_leaves_its_named_job_that_ends_by(name):
    """Status 0 is an end in order; after any other the job waits for a successor.  It stays in either case."""
    with Cluster(1) as cluster:
        world = 2 if name == "in_a_call" else 1
        process = trainer(cluster, name, world=world, ZEROD_JOB="named")
        if world == 2:
            other = zerod.connect("named", 1, 2, socket=cluster[0].socket)
            other.attach(one_tensor())
        status, _, err = output(process)
        assert status == {"exit_3": 3, "exception": 1, "killed": -signal.SIGKILL}.get(name, 0), (status, err)
        ended(cluster, "named", name in IN_ORDER, name not in IN_ORDER)
        assert jobs(cluster) == ["named"]


@cases_of([n for n in ENDS if n != "in_a_call"])
def a_job_that_torchrun_named_stays_unless_its_process_ends_in_order(name):
    """A successor goes on with it."""
    with Cluster(1) as cluster:
        run = {"TORCHELASTIC_RUN_ID": RUN}
        output(trainer(cluster, name, more="client.step([zerod.AdamWSet(0.1)])", **run))
        ended(cluster, RUN, name in IN_ORDER, name not in IN_ORDER)
        if name in IN_ORDER:
            until(lambda: not jobs(cluster), what="the end of the job")
            return
        assert jobs(cluster) == [f"torchrun-{RUN}"]
        _, out, err = output(trainer(cluster, "end", more="print(client.version)", TORCHELASTIC_RESTART_COUNT=1, **run))
        assert out == "1\n", (out, err)
        until(lambda: not jobs(cluster), what="the end of the job")


@cases_of({"closed": "client.close()", "with": "with client: pass", "completed": "client.finish()"}.items(), "{0[0]}")
def a_job_that_torchrun_named_ends_when_it_is(how):
    with Cluster(1) as cluster:
        output(trainer(cluster, "end", more=how[1], TORCHELASTIC_RUN_ID=RUN))
        until(lambda: not jobs(cluster) and "it is dropped" in cluster[0].log(), what="the end of the job")


@case
def a_job_that_torchrun_named_stays_if_its_ranks_keep_it():
    with Cluster(1) as cluster:
        output(trainer(cluster, "end", more="client.finish(True)", TORCHELASTIC_RUN_ID=RUN))
        until(lambda: "finished after step 0" in cluster[0].log(), what="the end of the rank")
        assert jobs(cluster) == [f"torchrun-{RUN}"]


@cases_of(["exit_0", "killed", "exit_3"])
def the_last_of_two_ranks(name):
    """Ends the job if both end in order.  Both come again where torchrun starts them again, and then the job ends."""
    with Cluster(1) as cluster:
        run = {"TORCHELASTIC_RUN_ID": RUN}
        go = f"{cluster.directory}/go"
        first, second = (trainer(cluster, end, rank, 2, more=more, **run) for rank, (end, more) in enumerate(
            (("end", ""), (name, f"while not os.path.exists('{go}'): time.sleep(0.01)"))))
        output(first)
        ended(cluster, RUN, 1, 0)
        assert jobs(cluster) == [f"torchrun-{RUN}"], "a rank is there"
        with open(go, "w", encoding="utf-8"):
            output(second)
        if name != "exit_0":
            ended(cluster, RUN, 1, 1)
            assert jobs(cluster) == [f"torchrun-{RUN}"]
            for process in [trainer(cluster, "end", r, 2, TORCHELASTIC_RESTART_COUNT=1, **run) for r in range(2)]:
                output(process)
        until(lambda: not jobs(cluster), what="the end of the job")


CHILD = "import multiprocessing\np = multiprocessing.get_context('{}').Process(target=print)\np.start(), p.join()"
CHILDREN = {"fork": "if os.fork() == 0: sys.exit(0)\nos.wait()", "multiprocessing_fork": CHILD.format("fork"),
            "multiprocessing_spawn": CHILD.format("spawn")}
ATTACHED = "zerod.connect(rank=zerod.OBSERVER).query('status')['jobs'][0]['ranks'][0]['attached']"


@cases_of(CHILDREN)
def the_rank_outlives_a_child_by(name):
    with Cluster(1) as cluster:
        status, _, err = output(trainer(cluster, "end", ZEROD_JOB="named",
                                        more=f"{CHILDREN[name]}\nassert client.step([]).version == 0 and {ATTACHED}"))
        assert status == 0 and not err, err
        ended(cluster, "named", 1, 0)


@case
def a_handler_of_the_interpreters_end_has_the_client():
    """If it is registered behind the import."""
    with Cluster(1) as cluster:
        status, out, err = output(python(ATTACH + """
import atexit
atexit.register(lambda: print(client.step([]).version))
client = zerod.connect("named")
client.attach(layout)
""", cluster))
        assert (status, out) == (0, "0\n") and not err, (status, out, err)
        ended(cluster, "named", 1, 0)


@case
def a_child_of_the_interpreters_end_says_nothing_for_its_parent():
    """It is forked when the client has left its close to the end of the process, and ends with status 0."""
    with Cluster(1) as cluster:
        status, _, err = output(trainer(cluster, "end", ZEROD_JOB="named", first="""
import atexit, os
@atexit.register
def last():
    assert client.closed
    if os.fork():
        os.wait()
        os.kill(os.getpid(), signal.SIGKILL)
"""))
        assert status == -signal.SIGKILL and not err, (status, err)
        ended(cluster, "named", 0, 1)


@case
def child_does_not_end_the_job_of_its_parent():
    with Cluster(1) as cluster:
        status, out, err = output(python(ATTACH + """
client = zerod.connect()
client.attach(layout)
if os.fork() == 0:
    sys.exit(0)  # runs the handlers registered with atexit
os.wait()
print([job["job"] for job in client.query("jobs")["jobs"]] == [client.job], client.step([]).version)
""", cluster))
        assert (status, out) == (0, "True 0\n"), (status, out, err)
        assert not jobs(cluster)


# ---- forks -----------------------------------------------------------------------------

@case
def forked_child_has_no_client():
    """Each call raises, and the parent goes on."""
    with attached() as (_, client):
        layout = client.layout
        client.fetch(0)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                for call in (*calls(client).values(), lambda: layout.shape(0)):
                    with raises(zerod.Closed, "forked"):
                        call()
                client.close()
                status = 0
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert client.step(SETS).version == 1


@case
def forked_child_connects_anew():
    with attached("job") as (cluster, client):
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException), zerod.connect("other", socket=cluster[0].socket) as own:
                own.attach(small_layout())
                status = int(own.step(SETS).version != 1)
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert client.step(SETS).version == 1


@case
def forked_child_does_not_keep_the_rank():
    """The daemon sees the parent's end although a forked child lives on."""
    with Cluster(1) as cluster:
        process = python(ATTACH + """
client = zerod.connect("job", 0, 1)
client.attach(layout)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
os.wait()
""", cluster)
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            until(lambda: not cluster[0].job("job")["ranks"][0]["attached"], what="the loss of the rank")
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()
            process.stderr.close()


# ---- exceptions and signals --------------------------------------------------------------

@case
def exception_in_the_block_is_a_loss():
    """The other rank's error names the lost rank."""
    with Cluster(1) as cluster:
        attaching = threading.Barrier(2)

        def fail():
            with raises(KeyError, "mine"), zerod.connect("job", 1, 2, socket=cluster[0].socket) as client:
                client.attach(one_tensor())
                attaching.wait(REPLY_S)
                raise KeyError("mine")

        def wait():
            with zerod.connect("job", 0, 2, socket=cluster[0].socket, timeout=2) as client:
                client.attach(one_tensor())
                attaching.wait(REPLY_S)
                with raises(zerod.Deadline, "rank 1", "lost"):
                    client.step(SETS)
        together(wait, fail)


@cases_of(["attach", "norm", "step"])
def interrupt_ends(name):
    """Ctrl-C ends a call that waits for another rank at once, not at its timeout of a minute."""
    with Cluster(1) as cluster:
        script = ATTACH + f"""
client = zerod.connect("job", 0, 2)
try:
    client.attach(layout)
    {"client.norm()" if name == "norm" else "client.step([])"}
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    client.step([])
except zerod.Closed as why:
    print(why, flush=True)
"""
        process = python(script, cluster)
        other = None
        if name != "attach":
            until(lambda: cluster[0].job("job"), what="rank 0")
            other = zerod.connect("job", 1, 2, socket=cluster[0].socket, timeout=2)
            other.attach(one_tensor())
        until(lambda: waits(cluster, name), what=f"rank 0 in {name}")
        process.send_signal(signal.SIGINT)
        status, out, err = output(process)
        assert status == 0 and out.startswith("interrupted\nthe connection to zerod was ended"), (out, err)
        if name == "norm":
            with raises(zerod.Deadline, "rank 0"):
                other.step(SETS)
        if name == "step":
            assert other.step([]).version == 0, "the interrupted zero_step() counts"
        if other:
            other.close()


def waits(cluster, name):
    """Whether rank 0 waits for the other rank in that call."""
    job = cluster[0].job("job")
    if not job or name == "attach":
        return bool(job)
    return job["waiting"] and "to attach" not in json.dumps(job["waiting"])


@case
def handler_that_returns_does_not_end_the_call():
    with Cluster(1) as cluster:
        process = python(ATTACH + """
client = zerod.connect("job", 0, 2)
def told(*_):
    try:
        client.version
    except zerod.Busy:
        print("busy", flush=True)
signal.signal(signal.SIGUSR1, told)
client.attach(layout)
print("attached", client.version, flush=True)
""", cluster)
        until(lambda: cluster[0].job("job"), what="the job")
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "busy\n"
        with zerod.connect("job", 1, 2, socket=cluster[0].socket) as other:
            other.attach(one_tensor())
            status, out, err = output(process)
            assert (status, out) == (0, "attached 0\n"), (out, err)


# ---- threads -----------------------------------------------------------------------------

@case
def threads_share_a_client():
    """Each reads back what it wrote, whatever the others do."""
    layout = zerod.Layout()
    layout.group("g", "fp32")
    for i in range(4):
        layout.tensor(0, f"t{i}", [1000])
    with attached(layout=layout) as (_, client):
        def work(tensor):
            for i in range(50):
                wrote, read = bytes([tensor, i, 0, 64]) * 1000, bytearray(4000)
                client.put(tensor, "master", 0, 1000, wrote)
                client.get(tensor, "master", 0, 1000, read)
                assert read == wrote
                assert client.query("jobs")["jobs"]
        together(*(lambda t=t: work(t) for t in range(4)))


@case
def other_threads_run_while_one_waits():
    with Cluster(1) as cluster:
        ran = threading.Event()

        def wait():
            with zerod.connect("job", 0, 2, socket=cluster[0].socket, timeout=60) as client:
                client.attach(one_tensor())

        def run():
            until(lambda: cluster[0].job("job"), what="the job")
            ran.set()
            with zerod.connect("job", 1, 2, socket=cluster[0].socket, timeout=60) as client:
                client.attach(one_tensor())
        together(wait, run)
        assert ran.is_set()


if __name__ == "__main__":
    main()
