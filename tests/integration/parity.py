#!/usr/bin/env python3
"""One step equals AdamW in double precision within fp32 rounding, and a model trained through zerod has the loss
curve of one trained without it."""
import math
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, Tools, finish_all, group, spawn, step_all, tensor  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from noise import noise  # noqa: E402

LAYOUT = [group("first", tensor("w", 130, 140), tensor("b", 140, set=1)),
          group("second", tensor("v", 7, 9), tensor("still", 20, frozen=True), tensor("one", set=1))]
TENSORS = [(0, 130 * 140, 0), (0, 140, 1), (1, 63, 0), (1, 20, None), (1, 1, 1)]  # group, elements, set
OFFSETS = [0, 18304, 0, 128, 256]  # tensors begin at multiples of 128 elements


def start_state(tensor_index, n):
    r = random.Random(tensor_index)
    return ([r.uniform(-1, 1) for _ in range(n)], [r.uniform(-0.1, 0.1) for _ in range(n)],
            [r.uniform(1e-4, 0.1) for _ in range(n)], [3 + tensor_index])


PLANES = ("master", "exp_avg", "exp_avg_sq", "step")


def put_state(actor):
    """Writes the states; returns them as rounded by the service."""
    state = []
    for t, (_, n, set_index) in enumerate(TENSORS):
        for plane, values in zip(PLANES, start_state(t, n)):
            if set_index is not None or plane == "master":
                actor.do("put", tensor=t, plane=plane, values=values)
        state.append(read_state(actor, t))
    return state


def read_state(actor, t):
    _, n, set_index = TENSORS[t]
    planes = PLANES if set_index is not None else PLANES[:1]
    return [actor.do("get", tensor=t, plane=p, count=1 if p == "step" else n)["values"] for p in planes]


def reference(state, gradients, clip):
    """AdamW on full tensors; gradients: [tensor], None for one without."""
    norm = math.sqrt(math.fsum(x * x for g in gradients if g for x in g))
    factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
    after = []
    for s, g, (_, _, set_index) in zip(state, gradients, TENSORS):
        if g is None:
            after.append(s)
            continue
        lr, beta1, beta2, eps, decay = SETS[set_index]
        p, m, v, (t,) = s
        t += 1
        m = [beta1 * a + (1 - beta1) * b * factor for a, b in zip(m, g)]
        v = [beta2 * a + (1 - beta2) * (b * factor) ** 2 for a, b in zip(v, g)]
        c1, c2 = 1 - beta1 ** t, 1 - beta2 ** t
        p = [a * (1 - lr * decay) - lr * (b / c1) / (math.sqrt(c / c2) + eps) for a, b, c in zip(p, m, v)]
        after.append([p, m, v, [t]])
    return norm, after


def difference(a, b):
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b)) / max(math.fsum(y * y for y in b), 1e-300))


def mean_gradients(ranks, micro_batches, scale, without=()):
    gradients = []
    for t, (g, n, set_index) in enumerate(TENSORS):
        if set_index is None or t in without:
            gradients.append(None)
            continue
        parts = [noise(5, 0, r, m, g, OFFSETS[t], n, scale) for r in range(ranks) for m in range(micro_batches)]
        gradients.append([math.fsum(x) / ranks for x in zip(*parts)])
    return gradients


def check(actor, state, gradients, clip, told_norm):
    norm, expected = reference(state, gradients, clip)
    assert abs(told_norm - norm) < 1e-6 * norm, (told_norm, norm)
    for t, planes in enumerate(expected):
        for plane, want, got in zip(PLANES, planes, read_state(actor, t)):
            error = difference(got, want)
            assert error < 1e-6, f"tensor {t}, {plane}: {error:.3g}"


@cases_of([(1, 1, 0.0), (2, 2, 0.0), (2, 2, 0.5), (3, 2, 50.0)], "{0[0]}_nodes_{0[1]}_ranks_clip_{0[2]}")
def one_step(what):
    nodes, n_ranks, clip = what
    with Cluster(nodes) as c:
        ranks = c.ranks("parity", LAYOUT, [i % nodes for i in range(n_ranks)], hold=2, push=2)
        state = put_state(ranks[0])
        for micro_batch in range(2):
            for a in ranks:
                for g in range(2):
                    a.do("grad", group=g, seed=5, micro_batch=micro_batch, scale=0.1)
                    a.do("push", group=g, last=micro_batch == 1)
        told = step_all(ranks, clip=clip)
        check(ranks[-1], state, mean_gradients(n_ranks, 2, 0.1), clip, told[0]["grad_norm"])


@case
def tensors_without_a_gradient_stay():
    """A tensor that no rank has a gradient for keeps its values and its step count."""
    with Cluster(2) as c:
        ranks = c.ranks("parity", LAYOUT, [0, 1], hold=2, push=2)
        state = put_state(ranks[0])
        for a in ranks:
            a.do("grad", group=0, seed=5, scale=0.1)
            a.do("push", group=0, present=[0, 1])
        told = step_all(ranks)
        check(ranks[1], state, mean_gradients(2, 1, 0.1, without=(0, 2, 4)), 0, told[0]["grad_norm"])


@case
def gradients_are_divided_by_the_loss_scale():
    with Cluster(1) as c:
        a, = c.ranks("parity", LAYOUT, [0], hold=2, push=2)
        state = put_state(a)
        for g in range(2):
            a.do("grad", group=g, seed=5, scale=0.1 * 1024)
            a.do("push", group=g)
        told = a.do("step", sets=SETS, clip=0.5, loss_scale=1024)
        check(a, state, mean_gradients(1, 1, 0.1), 0.5, told["grad_norm"])


# ---- the example trainer -----------------------------------------------------------

def write_text(path):
    r = random.Random(1)
    words = ["".join(r.choice("aeioulnrst") for _ in range(r.randint(2, 7))) for _ in range(80)]
    with open(path, "w", encoding="ascii") as f:
        f.write(" ".join(r.choice(words) for _ in range(20000)))


def curve(path):
    with open(path, encoding="ascii") as f:
        return [float(line.split()[1]) for line in f]


def trainer(directory, name, batch, *more):
    path = f"{directory}/{name}.loss"
    log = open(f"{directory}/{name}.log", "wb")
    return path, spawn([Tools.gpt, "--data", f"{directory}/text", "--loss-file", path, "--steps", "100", "--context", "32",
                        "--layers", "2", "--heads", "2", "--width", "32", "--batch", str(batch), "--warmup", "10",
                        "--eval-windows", "8", *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_for(c, name, process):
    c.others.append(process)
    status = process.wait(100 * SLOW)
    assert status == 0, open(f"{c.directory}/{name}.log", encoding="utf-8").read()


@cases_of([1, 2, 3])
def loss_curve_of_stage(stage):
    if Tools.gpt == "-":
        raise Skip("the example trainer is not built")
    with Cluster(2) as c:
        write_text(f"{c.directory}/text")
        runs = [trainer(c.directory, "local", 8, "--local")]
        for rank in range(2):
            runs.append(trainer(c.directory, f"rank{rank}", 4, "--init", "put", "--stage", str(stage), "--socket",
                                c[rank].socket, "--rank", str(rank), "--world-size", "2", "--local-world-size", "1"))
        for (_, process), name in zip(runs, ("local", "rank0", "rank1")):
            wait_for(c, name, process)
        local, one, two = (curve(path) for path, _ in runs)
        assert len(local) == len(one) == len(two) == 100
        worst = max(abs(x - (a + b) / 2) for x, a, b in zip(local, one, two))
        assert worst < 1e-3, f"curves differ by {worst:.3g}"
        assert local[-1] < local[0] - 0.5, f"the model did not learn: {local[0]} to {local[-1]}"


if __name__ == "__main__":
    main()
