"""A job that is disturbed in an update, moved or filled again, and ends with the bits of one that has one owner."""
import shutil

from cluster import SLOW, Cluster, crash_points, end_process, finish_all, until
from fake_gpu import environment, plugin
from harness import Skip
from moments import can_vote

STEPS = 4
# name: nodes, and options of all of them
WORLDS = {"two": (2, {}), "three": (3, {}), "five": (5, {}), "devices": (2, {"owners": "n0*3 n1*4"}),
          "small_chunks": (3, {"chunk": 128, "threads": 3}), "large_chunks": (2, {"chunk": 4096}),
          "scalar": (3, {"device": "host:scalar"}), "avx2": (3, {"device": "host:avx2"}), "mirrors": (3, {"mirror": 1, "delay_ms": 2})}
# whose states lie on fake GPUs
ON_GPUS = {"gpu": (3, {"mirror": 1}), "gpus": (2, {"owners": "n0*2 n1*2", "threads": 3})}
ONCE_A_STEP = ("update.begin", "update.finish")
POINTS = [*ONCE_A_STEP, "update.valid", "update.torn", "update.copied", "update.chunk"]  # that an update passes
IN_THE_MIDDLE = ["update.valid:3", "update.chunk:5", "update.chunk:40"]
CHANGES = {"add": (2, ("add-node", "n2")), "remove": (3, ("remove-node", "n1"))}


def needs_avx2(name):
    if name == "avx2" and not {"avx2", "fma"} <= set(open("/proc/cpuinfo", encoding="utf-8").read().split()):
        raise Skip("this CPU does not have AVX2")


def gpu(**more):
    """Options of a node whose states lie on a fake GPU, which computes and adds up as the host does."""
    return {"optimizer": "device", "cuda_plugin": plugin(), **more}


class Job:
    """Two ranks on two nodes.  fields: of each step; they hold and push two groups at once."""

    def __init__(self, layout, **fields):
        self.layout, self.fields, self.known = layout, {"clip": 0.5, "seed": 3, "pull": 0, "patient": True, "micro_batches": 2, **fields}, {}

    def attached(self, c, layout=None, **needs):
        return c.ranks("job", layout or self.layout, [0, 1], **{"hold": 2, "push": 2, **needs})

    def start(self, ranks, steps, **fields):
        for a in ranks:
            a.start("train", steps=steps, **{**self.fields, **fields})

    def train(self, c, ranks, steps, **fields):
        """The checksums when the last step is carried out."""
        self.start(ranks, steps, **fields)
        finish_all(ranks)
        return c.checksum("job")["planes"]

    def undisturbed(self, steps=STEPS, **needs):
        """The checksums with one owner."""
        key = steps, *needs
        if key not in self.known:
            with Cluster(2, owners=1) as c:
                self.known[key] = self.train(c, self.attached(c, **needs), steps)
        return self.known[key]

    def has_the_bits_of_one_owner(self, name):
        """In a world: its last steps take long where each multiplication is a call."""
        nodes, options = {**WORLDS, **ON_GPUS}[name]
        needs_avx2(name)
        steps = 1 if name == "scalar" else 2 if name in ON_GPUS else STEPS
        with environment(FAKE_GPUS=2), Cluster(nodes, **{"owners": nodes, **options, **(gpu() if name in ON_GPUS else {})}) as c:
            assert self.train(c, self.attached(c), steps) == self.undisturbed(steps)
            assert (c[0].job("job")["planes_on_gpu"] > 0) == (name in ON_GPUS)

    def is_moved_to_a_gpu_in_an_update(self, point):
        """The next daemon finishes on the GPU what the last one began in host memory: some chunks of a tensor are done."""
        if point.split(":", maxsplit=1)[0] not in crash_points():
            raise Skip("this zerod has no crash points")
        with Cluster(2, owners=1, chunk=384) as c:
            ranks = self.attached(c)
            self.train(c, ranks, 2)
            c[0].restart(crash=point)
            c.wait_up()
            self.start(ranks, STEPS - 2)
            until(lambda: not c[0].alive(), what=f"the crash at {point}")
            c[0].options.update(gpu())
            c[0].start()
            finish_all(ranks)
            assert c[0].job("job")["planes_on_gpu"] and c.checksum("job")["planes"] == self.undisturbed()

    def outlives_an_orderly_stop_on_a_gpu(self, **then):
        """then: options of the node after it."""
        with Cluster(2, owners=1, per_node={0: gpu()}) as c:
            ranks = self.attached(c)
            self.train(c, ranks, 2)
            assert end_process(c[0].process, 15 * SLOW), c[0].log()[-2000:]
            c[0].options.update(then)
            c[0].start()
            assert self.train(c, ranks, STEPS - 2) == self.undisturbed()
            assert (c[0].job("job")["planes_on_gpu"] > 0) == (not then)

    def adds_contributions_up_in_an_update(self, **needs):
        """Sums that are left to the update: of one rank that has a push slot on the GPU for each group."""
        told = []
        for away in (False, True):
            with environment(ZEROD_CUDA_PLUGIN=plugin()), Cluster(1, **(gpu() if away else {})) as c:
                windows = {"device": "cuda:0", "push": -1} if away else {"push": 2}
                a, = c.ranks("job", self.layout, [0], hold=2, grad="bf16", reduce="bf16", **windows, **needs)
                told.append(self.train(c, [a], 3, micro_batches=1))
                assert (c[0].job("job")["reduce"]["deferred"] > 0) == away
        assert told[0] == told[1]

    def dies_in_an_update(self, point, **options):
        """A daemon dies at the point in the second and in the third step."""
        if point not in crash_points():
            raise Skip("this zerod has no crash points")
        with Cluster(3, **options) as c:
            ranks = self.attached(c)
            self.train(c, ranks, 1)
            for times in (1, 1 if point in ONCE_A_STEP else 3):
                c[1].restart(crash=f"{point}:{times}")
                c.wait_up()
                self.start(ranks, 1)
                until(lambda: not c[1].alive(), what=f"the crash at {point}")
                c[1].start()
                finish_all(ranks)
                c.checksum("job")  # its update is over
            assert self.train(c, ranks, STEPS - 3) == self.undisturbed()

    def is_filled_from_mirrors(self, **options):
        with Cluster(3, mirror=1, **options) as c:
            ranks = self.attached(c)
            self.train(c, ranks, 2)
            c[2].kill()
            shutil.rmtree(c[2].options["state_dir"])
            c[2].start()
            assert self.train(c, ranks, STEPS - 2) == self.undisturbed()

    def changes_owners(self, what, **options):
        owners, command = CHANGES[what]
        with Cluster(3, owners=owners, **options) as c:
            can_vote(c)
            ranks = self.attached(c)
            self.train(c, ranks, 2)
            c[0].ctl("--no-wait", *command)
            assert self.train(c, ranks, STEPS - 2) == self.undisturbed()

    def is_restored(self, place, **options):
        """The job goes on from its checkpoint, of two steps, with three owners."""
        with Cluster(3, **options) as c:
            c[1].ctl("restore", "job", place)
            assert self.train(c, self.attached(c), STEPS - 2) == self.undisturbed()
