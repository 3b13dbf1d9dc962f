"""A job of one rank whose daemon dies on demand."""
import signal

import zerod
import zerod.torch as zt
from cluster import Cluster
from gpt import make

CALLS = ("fetch", "prefetch", "release", "grad", "push", "norm", "norms", "step", "get", "put", "stash_write",
         "stash_view", "stash_release")


class Scene:
    """A job of one rank, and its daemon, which dies on demand."""

    def __init__(self, model=None, stage=3, **options):
        self.cluster = Cluster(1)
        client = zerod.connect("job", 0, 1, socket=self.cluster[0].socket, timeout=120)
        self.model = zt.shard(model or make(), stage, client=client, **options)
        self.client = client

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()
        self.cluster.__exit__(*error)

    def restart(self):
        daemon = self.cluster[0]
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        daemon.start()

    def watch(self, before):
        """before(name) is called ahead of each call of the client."""
        for name in CALLS:
            def watched(*arguments, call=getattr(self.client, name), name=name, **named):
                before(name)
                return call(*arguments, **named)
            setattr(self.client, name, watched)
