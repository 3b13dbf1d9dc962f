#!/usr/bin/env python3
"""A daemon with the fake GPU plugin: when it starts, when it refuses to, and what its status says."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SETS, Cluster, Tools, end_process, small_layout, spawn, until  # noqa: E402
from fake_gpu import environment, plugin  # noqa: E402
from harness import Skip, case, main  # noqa: E402

NOWHERE = "/nonexistent/zerod-cuda.so"


def gpu_cluster(nodes=1, fake=None, **options):
    with environment(**(fake or {})):
        return Cluster(nodes, **{"device": "cuda", "cuda_plugin": plugin(), **options})


def gpu_rank(cluster):
    """A rank of job j, with its windows on a GPU."""
    with environment(ZEROD_CUDA_PLUGIN=plugin()):
        return cluster.ranks("j", small_layout(), [0], hold=1, push=1, device="cuda:0")[0]


def refused(words, fake=None, **options):
    """The daemon does not start, and its log has all the words."""
    with environment(**(fake or {})), Cluster(1, start=False, **{"device": "cuda", **options}) as c:
        c[0].start()
        assert c[0].process.wait(REPLY_S) > 0, c[0].log()
        for word in words:
            assert word in c[0].log(), f"'{word}' is not in: {c[0].log()}"
        c[0].process = None


# ---- the start ----


@case
def cuda_without_a_plugin_does_not_start():
    refused([NOWHERE, "No such file", "cuda_plugin"], cuda_plugin=NOWHERE)


@case
def cuda_without_a_driver_does_not_start():
    refused(["there is no GPU", "nvidia-smi"], {"FAKE_GPUS": "0"}, cuda_plugin=plugin())


@case
def cuda_with_a_plugin_of_another_version_does_not_start():
    refused(["interface 1,", "install the plugin"], {"FAKE_GPU_ABI": "1"}, cuda_plugin=plugin())


@case
def cuda_with_a_gpu_that_is_too_old_does_not_start():
    refused(["compute capability 7.0"], {"FAKE_GPU_MAJOR": "7"}, cuda_plugin=plugin())


@case
def nccl_that_is_missing_or_refuses_does_not_start():
    several = {"FAKE_GPUS": "2"}
    refused(["gpu_collectives = nccl", "libnccl.so.2", "install NCCL"], {**several, "FAKE_GPU_NCCL_NONE": "1"},
            cuda_plugin=plugin(), gpu_collectives="nccl")
    refused(["gpu_collectives = nccl", "no communicator for these"], {**several, "FAKE_GPU_NCCL_REFUSED": "1"},
            cuda_plugin=plugin(), gpu_collectives="nccl")


@case
def nccl_is_not_needed_where_there_is_one_gpu():
    with gpu_cluster(fake={"FAKE_GPU_NCCL_NONE": "1"}, gpu_collectives="nccl") as c:
        assert c[0].status()["cuda"]["between_gpus"] is None, c[0].status()["cuda"]


@case
def auto_goes_on_without_a_gpu_and_says_why():
    for fake, path, why in (({}, NOWHERE, NOWHERE), ({"FAKE_GPUS": "0"}, plugin(), "there is no GPU")):
        with gpu_cluster(fake=fake, device="auto", cuda_plugin=path) as c:
            assert "no GPU is used" in c[0].log() and why in c[0].log(), c[0].log()
            status = c[0].status()
            assert status["cuda"] is None and status["gpus"] == [], status
            assert "GPU" not in c[0].ctl_run("status").stdout
            a, = c.ranks("j", small_layout(), [0], hold=1, push=1)
            a.do("train", steps=1, sets=SETS)


@case
def auto_does_not_mention_gpus_where_nothing_is_installed():
    """Without a plugin and without a driver the log does not tell anybody to install either."""
    with Cluster(1) as c:
        if "nvidia-smi" in c[0].log() or os.path.exists("/proc/driver/nvidia/version"):
            raise Skip("the plugin is installed, or the driver")
        assert "GPU" not in c[0].log() and "plugin" not in c[0].log(), c[0].log()


@case
def auto_finds_a_gpu():
    with gpu_cluster(device="auto") as c:
        assert len(c[0].status()["gpus"]) == 1


@case
def host_does_not_look_for_a_gpu():
    with gpu_cluster(device="host") as c:
        assert c[0].status()["gpus"] == []
        with open(f"/proc/{c[0].process.pid}/maps", encoding="utf-8") as maps:
            assert "fake-gpu" not in maps.read()


# ---- status ----


@case
def status_lists_each_gpu():
    with gpu_cluster(fake={"FAKE_GPUS": 2, "FAKE_GPU_BYTES": 1 << 28}) as c:
        status = c[0].status()
        assert status["cuda"] == {"plugin_interface": 12, "driver": "12.4", "runtime": "12.4", "between_gpus": {
            "by": "nccl", "nccl": "2.28.9", "moves_by_nccl": 0, "why": None}}, status["cuda"]
        assert [g["name"] for g in status["gpus"]] == ["fake GPU 0", "fake GPU 1"], status["gpus"]
        for n, gpu in enumerate(status["gpus"]):
            assert gpu["memory"] == {"total": 1 << 28, "free": 1 << 28, "used": 0, "zerod": 0}, gpu
            assert gpu["allocations"] == [] and gpu["compute_capability"] == "9.0", gpu
            assert gpu["uuid"] == f"GPU-7a65726f-6420-6661-6b65-2047505520{n:02x}", gpu
        said = c[0].ctl_run("status").stdout
        assert "GPU 1: fake GPU 1, GPU-7a65726f" in said and "CUDA: driver 12.4" in said, said


@case
def stop_waits_for_status_requests():
    """Another thread asks the GPUs for their memory; a stop waits for that thread."""
    with gpu_cluster() as c:
        asking = [spawn([Tools.zeroctl, "--socket", c[0].socket, "status"], stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL) for _ in range(12)]
        c.others += asking
        until(lambda: any(p.poll() is not None for p in asking), what="the first answer")
        assert end_process(c[0].process, REPLY_S), c[0].log()


# ---- computing, with states and windows in host memory ----


@case
def states_in_host_memory_have_the_bits_of_a_host_without_gpus():
    sums = []
    for device in ("host", "cuda"):
        with gpu_cluster(2, device=device) as c:
            ranks = c.ranks("j", small_layout(), [0, 1], hold=1, push=1)
            for a in ranks:
                a.start("train", steps=3, sets=SETS)
            for a in ranks:
                a.good(a.finish())
            sums.append(c[0].ctl("checksum", "j")["planes"])
    assert sums[0] == sums[1], sums


# ---- windows ----


def in_gpu_memory(daemon):
    gpu, = daemon.status()["gpus"]
    return {a["what"]: a["bytes"] for a in gpu["allocations"]}


@case
def windows_on_a_gpu_are_listed_and_freed():
    with gpu_cluster() as c:
        a = gpu_rank(c)
        lies = in_gpu_memory(c[0])
        assert lies and all("job j" in what for what in lies), lies
        gpu, = c[0].status()["gpus"]
        assert gpu["memory"]["zerod"] == sum(lies.values()) > 0, gpu
        a.do("train", steps=1, sets=SETS)
        a.do("close")
        c[0].ctl_run("drop", "j")
        until(lambda: not in_gpu_memory(c[0]), what="the windows' end")


@case
def shards_name_their_place():
    places = {"host": "host", "device": "GPU 0"}
    for optimizer, place in places.items():
        with gpu_cluster(2, per_node={1: {"optimizer": optimizer}}) as c:
            a, = c.ranks("j", small_layout(), [0], hold=1, push=1)
            a.do("train", steps=1, sets=SETS)
            for d in c.daemons:
                shards = [s for g in d.ctl("shards", "j")["jobs"][0]["groups"] for s in g["shards"]]
                assert {(s["owner"], s["place"]) for s in shards} == {("n0", "host"), ("n1", place)}, shards
            said = c[0].ctl_run("shards", "j").stdout
            assert place in said and "PLACE" in said, said


@case
def a_gpu_that_fails_ends_the_daemon_with_a_message():
    with gpu_cluster(fake={"FAKE_GPU_FAULT": "1"}) as c:
        a = gpu_rank(c)
        a.start("fetch", group=0)
        assert c[0].process.wait(REPLY_S) == 1
        assert "GPU 0 (fake GPU 0)" in c[0].log() and "zerod ends" in c[0].log(), c[0].log()
        c[0].process = None


if __name__ == "__main__":
    main()
