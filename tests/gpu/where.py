"""Where the bundle's programs are, and daemons that use the GPU.

Rule: this process's environment is not a daemon's: what begins with ZEROD_ would be its options.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

from cluster import Cluster, Tools  # noqa: E402

MIB = 1 << 20
GPU_STATES = {"device": "cuda", "optimizer": "device"}
HOST_STATES = {"device": "cuda", "optimizer": "host"}


def use_bundle(top):
    Tools.zerod, Tools.zeroctl = f"{top}/bin/zerod", f"{top}/bin/zeroctl"
    Tools.actor, Tools.gpt = f"{top}/bin/actor", f"{top}/bin/gpt"


def cluster(plugin, nodes=1, **options):
    """Daemons that know the plugin."""
    return Cluster(nodes, cuda_plugin=plugin, **options)


def peers_environment(top, threads):
    """Of a trainer by a peer that PyTorch does not bring: its packages, and as many threads as a daemon has."""
    return {"PYTHONPATH": f"{top}/peers", "DS_SKIP_CUDA_CHECK": "1", "OMP_NUM_THREADS": str(threads)}


def trainer_environment(top, plugin):
    """Of a process that loads libzero."""
    libraries = ":".join(filter(None, [f"{top}/lib/client", os.environ.get("LD_LIBRARY_PATH")]))
    return {**os.environ, "ZEROD_CUDA_PLUGIN": plugin, "LD_LIBRARY_PATH": libraries,
            "ZEROD_LIBRARY": f"{top}/lib/client/libzero.so.0", "PYTHONPATH": f"{top}/python",
            "OMP_NUM_THREADS": "2"}
