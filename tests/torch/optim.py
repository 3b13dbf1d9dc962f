#!/usr/bin/env python3
"""zerod.torch's optimizers, clipping and GradScaler against torch's own, on the same model and data."""
import copy
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402

STEPS = 8


def counted(name, tensor):
    """Without the keys' biases: their gradient is rounding errors of 0, which Adam makes large."""
    return tensor.double().view(3, -1)[::2] if name.endswith("qkv.bias") else tensor.double()


def distance(mine, theirs):
    """The largest relative distance, norm-wise, of tensors of two state_dicts."""
    assert list(mine) == list(theirs)
    return max(float((counted(k, mine[k]) - counted(k, theirs[k])).norm()
                     / (counted(k, theirs[k]).norm() + 1e-30)) for k in mine)


def near(distances, most):
    assert max(distances) < most, distances


def share(t, rank, world):
    return batch_of(t).chunk(world)[rank] if world > 1 else batch_of(t)


def decayed(model):
    """Two groups, as trainers make them: matrices decay, vectors do not."""
    return [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1, "lr": 3e-3},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


def train(model, optimizer, steps, scheduler=None, clip=None, begin=0, rank=0, world=1):
    for t in range(begin, begin + steps):
        optimizer.zero_grad()
        model(share(t, rank, world)).backward()
        if clip:
            clip()
        optimizer.step()
        if scheduler:
            scheduler.step()


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=STEPS + 1)


def by_lambda(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 1 / (1 + t), lambda t: 0.5 ** t])


def plateau(optimizer):
    return torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)], milestones=[3])


@cases_of([one_cycle, by_lambda, plateau], "{0.__name__}")
def scheduled_groups_as_torch(schedule):
    def run(rank):
        theirs = make()
        reference = torch.optim.AdamW(decayed(theirs), lr=1e-3)
        train(theirs, reference, STEPS, schedule(reference))
        zt, mine = zero(make())
        optimizer = zt.AdamW(mine, decayed(mine), lr=1e-3)
        train(mine, optimizer, STEPS, schedule(optimizer), rank=rank, world=2)
        for a, b in zip(optimizer.param_groups, reference.param_groups):
            assert (a["lr"], a["betas"]) == (b["lr"], b["betas"]), (a["lr"], b["lr"], a["betas"], b["betas"])
        return distance(mine.state_dict(), theirs.state_dict())
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


class ReferenceLion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675, line by line."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (beta1 * m + (1 - beta1) * g).sign()
                p -= group["lr"] * (update + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * g)


# class in zerod.torch and name in the service, arguments, reference, planes
OPTIMIZERS = {
    "adamw": ("AdamW", "adamw", {"lr": 1e-3}, torch.optim.AdamW, ["exp_avg", "exp_avg_sq"]),
    "adamw_maximize": ("AdamW", "adamw", {"lr": 1e-4, "maximize": True}, torch.optim.AdamW,
                       ["exp_avg", "exp_avg_sq"]),
    "adam": ("Adam", "adam", {"lr": 1e-3, "weight_decay": 0.1}, torch.optim.Adam, ["exp_avg", "exp_avg_sq"]),
    "adam_maximize": ("Adam", "adam", {"lr": 1e-4, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}, torch.optim.Adam,
                      ["exp_avg", "exp_avg_sq"]),
    "sgd": ("SGD", "sgd", {"lr": 0.1, "weight_decay": 0.1, "dampening": 0.3}, torch.optim.SGD, []),
    "sgd_maximize": ("SGD", "sgd", {"lr": 1e-3, "maximize": True}, torch.optim.SGD, []),
    "sgd_momentum": ("SGD", "sgd-momentum", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, torch.optim.SGD,
                     ["momentum_buffer"]),
    "sgd_nesterov": ("SGD", "sgd-momentum", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, torch.optim.SGD,
                     ["momentum_buffer"]),
    "lion": ("Lion", "lion", {"lr": 1e-3, "weight_decay": 0.1}, ReferenceLion, ["exp_avg"]),
    "lion_maximize": ("Lion", "lion", {"lr": 1e-4, "betas": (0.8, 0.9), "maximize": True}, ReferenceLion, ["exp_avg"]),
}


@cases_of(OPTIMIZERS, "{}")
def computes_as_its_reference(which):
    """Values and moments, over some steps with two param groups; then it loads the reference's state,
    and the reference its own."""
    kind, name, arguments, reference, planes = OPTIMIZERS[which]

    def run(rank):
        zt, mine = zero(make(), optimizer=name)
        theirs = make()
        ours, wanted = getattr(zt, kind)(mine, decayed(mine), **arguments), reference(decayed(theirs), **arguments)
        train(mine, ours, 4, rank=rank, world=2)
        train(theirs, wanted, 4)
        distances = [distance(mine.state_dict(), theirs.state_dict())]
        state = wanted.state_dict()["state"]
        order = [n for few in (False, True) for n, p in theirs.named_parameters() if (p.dim() < 2) == few]
        for i, entry in ours.state_dict()["state"].items():
            assert set(entry) == {"step", *planes} and entry["step"] == 4, entry.keys()
            distances += [distance({order[i]: entry[p]}, {order[i]: state[i][p]}) for p in planes]
        ours.load_state_dict(copy.deepcopy(wanted.state_dict()))
        wanted.load_state_dict(ours.state_dict())
        train(mine, ours, 4, begin=4, rank=rank, world=2)
        train(theirs, wanted, 4, begin=4)
        return max(*distances, distance(mine.state_dict(), theirs.state_dict()))
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@case
def refuses_a_model_sharded_for_another():
    def run(_):
        zt, model = zero(make())
        model.sharded.optimizer_name = "another"
        raises(ValueError, ["AdamW is for shard(model, optimizer='adamw'", "is of shard(model, optimizer='another'"], zt.AdamW, model)
        raises(ValueError, ["Lion is for shard(model, optimizer='lion'", "optimizer='another'"], zt.Lion, model)
        raises(ValueError, ["Adam is for shard(model, optimizer='adam'", "optimizer='another'"], zt.Adam, model)
        raises(ValueError, ["one of adamw, adam, lion, sgd, sgd-momentum", "no-such"], zt.shard, make(),
               optimizer="no-such")
        model.sharded.optimizer_name = "sgd"
        raises(ValueError, ["is of shard(model, optimizer='sgd',", "for shard(model, optimizer='sgd-momentum'"], zt.SGD, model, momentum=0.9)
        raises(ValueError, ["is of shard(model, optimizer='sgd',", "for shard(model, optimizer='sgd-momentum'"], zt.SGD, model,
               [{"params": [model.head.weight], "momentum": 0.9}])
        raises(ValueError, ["'sgd' keeps no momentum_buffer", "optimizer='sgd-momentum'"],
               zt.SGD(model, [model.head.weight]).add_param_group, {"params": [model.wte.weight], "momentum": 0.9})
        model.sharded.optimizer_name = "sgd-momentum"
        raises(ValueError, ["SGD is for shard(model, optimizer='sgd',"], zt.SGD, model)
    ranks.run(run, 1, ranks.shared())


@case
def momentum_of_each_group_as_torch():
    """One group has none, and the other's changes between steps."""
    def groups(model):
        halves = decayed(model)
        return [{**halves[0], "momentum": 0.9, "dampening": 0.2}, {**halves[1], "momentum": 0.0, "dampening": 0.5}]

    def run(rank):
        theirs, (zt, mine) = make(), zero(make(), optimizer="sgd-momentum")
        wanted, ours = torch.optim.SGD(groups(theirs), lr=0.1), zt.SGD(mine, groups(mine), lr=0.1)
        for begin in range(0, 6, 2):
            for optimizer in (wanted, ours):
                optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * begin
            train(theirs, wanted, 2, begin=begin)
            train(mine, ours, 2, begin=begin, rank=rank, world=2)
        return distance(mine.state_dict(), theirs.state_dict())
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@case
def arguments_are_torchs_or_refused():
    def run(_):
        zt, model = zero(make())
        for kind in (zt.Adam, zt.AdamW, zt.SGD):
            for name in ("differentiable", "capturable", *(["amsgrad"] if kind is not zt.SGD else [])):
                raises(ValueError, [f"{name}=True", "leave it out"], kind, model, **{name: True})
            raises(TypeError, [kind.__name__, "'momentums'"], kind, model, momentums=0.9)
        raises(ValueError, ["zerod.torch.AdamW"], zt.Adam, model, decoupled_weight_decay=True)
        raises(ValueError, ["amsgrad"], zt.AdamW, model, None, 1e-3, (0.9, 0.99), 1e-8, 0.0, True)
        raises(ValueError, ["Nesterov momentum requires a momentum"], zt.SGD, model, nesterov=True)
        raises(ValueError, ["zero dampening"], zt.SGD, model, momentum=0.9, dampening=0.1, nesterov=True)
        raises(ValueError, ["momentum -0.1"], zt.SGD, model, momentum=-0.1)
        raises(ValueError, ["betas"], zt.Adam, model, betas=(0.9, 1.0))
        optimizer = zt.AdamW(model, foreach=False, fused=True, differentiable=False)
        state = optimizer.state_dict()
        assert not {"foreach", "fused", "amsgrad"} & set(state["param_groups"][0])
        adam = torch.optim.Adam(make().parameters())
        if "decoupled_weight_decay" in adam.defaults:  # PyTorch 2.6 does not tell Adam from AdamW
            raises(ValueError, ["decoupled_weight_decay=False is zerod.torch.Adam,"], optimizer.load_state_dict,
                   adam.state_dict())
        adam.load_state_dict(state)
        assert adam.param_groups[0]["decoupled_weight_decay"], "torch computes AdamW on with it"
    ranks.run(run, 1, ranks.shared())


@case
def optimizer_of_a_marked_model_is_what_it_is_sharded_for():
    def run(_):
        import zerod.torch as zt
        model = zt.fully_shard(make())
        optimizer = zt.Lion(model)
        assert model.sharded.optimizer_name == "lion" and optimizer.defaults["lr"] == 1e-4
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        state["state"][0]["exp_avg_sq"] = state["state"][0]["exp_avg"]
        raises(ValueError, ["'exp_avg_sq'", "lion does not keep"], optimizer.load_state_dict, state)
    ranks.run(run, 1, ranks.shared())


@case
def groups_are_added_and_the_rest_stays():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model, model.blocks.parameters(), lr=1e-2)
        before = model.state_dict()
        train(model, optimizer, 2)
        after = model.state_dict()
        moved = {n for n in after if not torch.equal(after[n], before[n])}
        assert moved == {n for n in after if n.startswith("blocks.")}, moved
        optimizer.add_param_group({"params": model.head.weight, "lr": 0.0})
        train(model, optimizer, 1)
        assert torch.equal(model.state_dict()["head.weight"], before["head.weight"]), "lr is 0"
        assert "wte.weight" not in {p.zerod_param.name for g in optimizer.param_groups for p in g["params"]}
    ranks.run(run, 1, ranks.shared())


@case
def refuses_what_it_cannot_do():
    def run(_):
        model, other = make(), make()
        model.wpe.weight.requires_grad_(False)
        zt, model = zero(model)
        model.wpe.weight.requires_grad_(True)
        raises(ValueError, ["'wpe.weight'", "frozen"], zt.AdamW, model, [model.wpe.weight])
        model.wpe.weight.requires_grad_(False)
        raises(ValueError, ["0 of param group 0"], zt.AdamW, model, other.parameters())
        raises(ValueError, ["'far'"], zt.AdamW, model, [("far", other.head.weight)])
        raises(TypeError, ["not sharded"], zt.AdamW, other)
        raises(TypeError, ["AdamW(model"], zt.AdamW, [p for p in model.parameters()])
        raises(ValueError, ["betas"], zt.AdamW, model, betas=(torch.tensor(0.9), 0.99))
        raises(ValueError, ["lr"], zt.AdamW, model, lr=-1)
        raises(ValueError, ["amsgrad"], zt.AdamW, model, [{"params": [model.head.weight], "amsgrad": True}])
        raises(ValueError, ["empty"], zt.AdamW, model, [])
        raises(ValueError, ["more than one"], zt.AdamW, model,
               [{"params": [model.head.weight]}, {"params": [model.head.weight]}])
        raises(TypeError, ["set"], zt.AdamW, model, [{"params": {model.head.weight}}])
    ranks.run(run, 1, ranks.shared())


@case
def more_groups_than_sets_share_those_of_their_values():
    """Layer-wise rates: a group for each parameter, and some more; rates that part and meet again."""
    def rates(optimizer, t):
        for i, group in enumerate(optimizer.param_groups):
            group["lr"] = 1e-2 * (1 + i % (3, 1, 40)[t % 3])

    def run(_):
        plain = make()
        zt, model = zero(make(), optimizer="sgd")
        steppers = []
        for m, kind in ((plain, torch.optim.SGD), (model, zt.SGD)):
            groups = [{"params": [p]} for p in m.parameters()]
            groups = [{"params": []}] * (300 - len(groups)) + groups
            steppers.append(kind(groups) if m is plain else kind(m, groups))
        for t in range(5):
            for m, optimizer in zip((plain, model), steppers):
                rates(optimizer, t)
                m(batch_of(t)).backward()
                optimizer.step()
                optimizer.zero_grad()
        found = model.state_dict()
        assert max(float((found[n] - p.detach()).abs().max()) for n, p in plain.named_parameters()) < 1e-4
        steppers[1].param_groups[0]["lr"] = 7.0
        for i, group in enumerate(steppers[1].param_groups):
            group["lr"] = 1e-4 * i
        model(batch_of(0)).backward()
        raises(ValueError, ["300 param groups", "300 different", "256"], steppers[1].step)
    ranks.run(run, 1, ranks.shared())


@case
def has_256_sets_and_not_one_more():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model, [{"params": [], "lr": 1e-5 * i} for i in range(255)] + [{"params": [model.head.weight], "lr": 1.0}])
        before = model.state_dict()["head.weight"]
        train(model, optimizer, 1)
        assert (model.state_dict()["head.weight"] - before).abs().max() > 0.5, "the 256th group's lr"
        raises(ValueError, ["256"], optimizer.add_param_group, {"params": [model.wte.weight], "lr": 2.0})
        optimizer.add_param_group({"params": [model.wte.weight], "lr": 1e-5})
    ranks.run(run, 1, ranks.shared())


@case
def hooks_and_closure_run():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        optimizer.register_state_dict_post_hook(lambda o, d: {**d, "mine": 1})
        optimizer.register_load_state_dict_pre_hook(lambda o, d: calls.append(d.pop("mine")))
        optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))

        def closure():
            loss = model(batch_of(0))
            loss.backward()
            return loss
        assert optimizer.step(closure).item() > 0
        optimizer.load_state_dict(optimizer.state_dict())
        assert calls == ["pre", "post", 1, "loaded"], calls
    ranks.run(run, 1, ranks.shared())


@case
def newest_optimizer_takes_over():
    def run(_):
        zt, model = zero(make())
        old = zt.AdamW(model, lr=1.0)
        new = zt.AdamW(model, lr=0.0)
        before = model.state_dict()
        train(model, new, 1)
        assert distance(model.state_dict(), before) == 0
        raises(RuntimeError, ["taken over"], old.step)
    ranks.run(run, 1, ranks.shared())


@case
def zero_grad_discards():
    def run(rank):
        zt, model = zero(make())
        optimizer = zt.AdamW(model, lr=1e-3)
        model(share(7, rank, 2)).backward()
        assert model.sharded.has_gradients
        optimizer.zero_grad()
        assert not model.sharded.has_gradients and model.sharded.client.version == 0
        train(model, optimizer, 2, rank=rank, world=2)
        fresh = make()
        train(fresh, torch.optim.AdamW(fresh.parameters(), lr=1e-3), 2)
        return distance(model.state_dict(), fresh.state_dict())
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@case
def aborted_step_is_replayed():
    def run(_):
        import zerod
        zt, model = zero(make())
        optimizer, client = zt.AdamW(model, lr=1e-3), model.sharded.client
        scaler = zt.GradScaler(optimizer, init_scale=8.0)

        def attempt():
            scaler.scale(model(batch_of(0))).backward()
            scaler.unscale_(optimizer)
            norm = model.clip_grad_norm_(0.5)
            scaler.step(optimizer)
            scaler.update()
            return norm.item()

        def aborted(*_, **__):
            client.__dict__.pop("step")
            client.step([])  # the attempt ends, as it does when the service aborts it
            raise zerod.Aborted("the attempt is over")
        client.step = aborted
        raises(zerod.Aborted, ["over"], attempt)
        assert not model.sharded.has_gradients
        norm = attempt()
        fresh = make()
        reference = torch.optim.AdamW(fresh.parameters(), lr=1e-3)
        train(fresh, reference, 1, clip=lambda: torch.nn.utils.clip_grad_norm_(fresh.parameters(), 0.5))
        assert optimizer.version == 1 and abs(norm - optimizer.grad_norm) < 1e-6
        return distance(model.state_dict(), fresh.state_dict())
    near(ranks.run(run, 1, ranks.shared()), 1e-5)


# ---- clipping ----------------------------------------------------------------------


@cases_of([0.1, 1e9])
def clips_as_torch(max_norm):
    def run(rank):
        theirs, norms = make(), ([], [])
        train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3), 4, clip=lambda: norms[0].append(
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm).item()))
        zt, mine = zero(make(), 2)
        optimizer = zt.AdamW(mine, lr=1e-3)
        train(mine, optimizer, 4, rank=rank, world=2, clip=lambda: norms[1].append(
            zt.clip_grad_norm_(mine.parameters(), max_norm).item()))
        assert max(abs(a - b) / a for a, b in zip(*norms)) < 1e-4, norms
        assert abs(optimizer.grad_norm - norms[1][-1]) < 1e-6 * norms[1][-1]
        return distance(mine.state_dict(), theirs.state_dict())
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@case
def clipping_is_whole_or_refused():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model, lr=1e-3)
        model(batch_of(0)).backward()
        raises(ValueError, ["norm_type"], model.clip_grad_norm_, 1.0, norm_type=1)
        raises(ValueError, ["max_norm"], model.clip_grad_norm_, 0.0)
        raises(ValueError, ["max_norm"], model.clip_grad_norm_, float("nan"))
        raises(ValueError, ["'head.weight' and 4 more"], zt.clip_grad_norm_, model.blocks, 1.0)
        raises(ValueError, ["not a parameter of a sharded"], zt.clip_grad_norm_, make(), 1.0)
        raises(ValueError, ["pass the model"], zt.clip_grad_norm_, [], 1.0)
        raises(RuntimeError, ["clip_grad_norm_"], torch.nn.utils.clip_grad_norm_, model.parameters(), 1.0)
        first, second = model.clip_grad_norm_(float("inf")), model.clip_grad_norm_(0.25)
        assert first == second, "measuring clips nothing"
        assert model.clip_grad_norm_(0.5) == 0.25, "already clipped to less"
        optimizer.step()
        fresh = make()
        train(fresh, torch.optim.AdamW(fresh.parameters(), lr=1e-3), 1,
              clip=lambda: torch.nn.utils.clip_grad_norm_(fresh.parameters(), 0.25))
        return distance(model.state_dict(), fresh.state_dict())
    near(ranks.run(run, 1, ranks.shared()), 1e-5)


@case
def nonfinite_norm_is_an_error_if_asked():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model)
        before = model.state_dict()
        (model(batch_of(0)) * float("inf")).backward()
        raises(RuntimeError, ["non-finite"], model.clip_grad_norm_, 1.0, error_if_nonfinite=True)
        assert model.clip_grad_norm_(1.0).isnan()
        optimizer.step()
        assert optimizer.skipped and optimizer.version == 0
        assert distance(model.state_dict(), before) == 0
    ranks.run(run, 1, ranks.shared())


# ---- loss scaling ------------------------------------------------------------------


def scaled(model, optimizer, scaler, overflows, clip, rank=0, world=1):
    """Steps, some with a gradient that is not finite; the scales used."""
    scales = []
    for t in range(len(overflows)):
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        loss = model(share(t, rank, world))
        scaler.scale(loss * float("inf") if overflows[t] else loss).backward()
        scaler.unscale_(optimizer)
        clip()
        scaler.step(optimizer)
        scaler.update()
    return scales


@case
def scaler_follows_torch():
    overflows = [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]

    def run(rank):
        theirs = make()
        reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
        wanted = scaled(theirs, reference, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2),
                        overflows, lambda: torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0))
        zt, mine = zero(make())
        optimizer = zt.AdamW(mine, lr=1e-3)
        scaler = zt.GradScaler(optimizer, init_scale=1024.0, growth_interval=2)
        got = scaled(mine, optimizer, scaler, overflows, lambda: mine.clip_grad_norm_(1.0), rank, 2)
        assert got == wanted, (got, wanted)
        assert optimizer.version == overflows.count(0)
        assert optimizer.loss_scale == scaler.get_scale()
        return distance(mine.state_dict(), theirs.state_dict())
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@case
def scaler_keeps_torchs_order_and_state():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model)
        scaler = zt.GradScaler(model, init_scale=4.0)
        assert scaler.is_enabled() and scaler.get_scale() == 4.0
        one, two = scaler.scale([torch.ones(2), torch.ones(2, dtype=torch.float16)])
        assert one[0] == 4 and two.dtype is torch.float16
        raises(AssertionError, ["before step"], scaler.update)
        scaler.scale(model(batch_of(0))).backward()
        scaler.unscale_(optimizer)
        raises(RuntimeError, ["already"], scaler.unscale_, optimizer)
        scaler.step(optimizer)
        raises(RuntimeError, ["already"], scaler.step, optimizer)
        scaler.update()
        state = scaler.state_dict()
        assert set(state) == set(torch.amp.GradScaler("cpu").state_dict())
        again = zt.GradScaler(model)
        assert again.get_scale() == 4.0, "the job's scale is gone on with"
        again.load_state_dict({**state, "scale": 2.0})
        assert again.get_scale() == 2.0
        again.update(64.0)
        assert again.get_scale() == 64.0
        raises(ValueError, ["growth_factor"], again.load_state_dict, {**state, "growth_factor": 3.0})
        raises(TypeError, ["neither"], again.step, torch.optim.AdamW([torch.zeros(1)]))
        off = zt.GradScaler(optimizer, enabled=False)
        assert off.scale(3) == 3 and off.get_scale() == 1.0 and off.state_dict() == {}
        model(batch_of(1)).backward()
        off.step(optimizer)
        off.update()
        assert optimizer.version == 2
    ranks.run(run, 1, ranks.shared())


# ---- state -------------------------------------------------------------------------


@case
def state_goes_to_torch_and_back():
    def run(rank):
        zt, mine = zero(make())
        optimizer = zt.AdamW(mine, decayed(mine), lr=1e-3)
        train(mine, optimizer, 3, rank=rank, world=2)
        theirs = make()
        theirs.load_state_dict(mine.state_dict())
        reference = torch.optim.AdamW(decayed(theirs), lr=1.0)
        reference.load_state_dict(optimizer.state_dict())
        train(theirs, reference, 3, begin=3)
        train(mine, optimizer, 3, begin=3, rank=rank, world=2)
        near = distance(mine.state_dict(), theirs.state_dict())
        optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
        mine.load_state_dict(theirs.state_dict())
        assert "foreach" not in optimizer.param_groups[0] and optimizer.param_groups[0]["weight_decay"] == 0.1
        state = reference.state_dict()["state"]
        for i, entry in optimizer.state_dict()["state"].items():
            assert entry["step"] == 6 and entry["step"].dtype is torch.float32
            assert torch.equal(entry["exp_avg_sq"], state[i]["exp_avg_sq"])
        train(theirs, reference, 3, begin=6)
        train(mine, optimizer, 3, begin=6, rank=rank, world=2)
        return max(near, distance(mine.state_dict(), theirs.state_dict()))
    near(ranks.run(run, 2, ranks.shared()), 1e-4)


@cases_of([torch.bfloat16, torch.float16, torch.float32])
def resumes_exactly(dtype):
    def run(_, sent=None):
        zt, model = zero(make(dtype=dtype))
        optimizer = zt.AdamW(model, lr=1e-3)
        if sent:
            model.load_state_dict(sent[0])
            optimizer.load_state_dict(sent[1])
        else:
            train(model, optimizer, 2)
        between = model.state_dict(), optimizer.state_dict()
        assert ("master" in between[1]["state"][0]) == (dtype is not torch.float32)
        train(model, optimizer, 2, begin=2)
        return between, model.state_dict(), optimizer.state_dict()["state"]
    # files, not pipes, carry tensors of one process to another
    path = f"{tempfile.gettempdir()}/zerod-test-resume"
    try:
        ranks.run(lambda r: torch.save(run(r), path), 1, ranks.shared())

        def resumed(r):
            between, params, state = torch.load(path)
            _, again, state_again = run(r, between)
            assert distance(again, params) == 0
            for i, entry in state.items():
                assert all(torch.equal(v, state_again[i][k]) for k, v in entry.items())
        ranks.run(resumed, 1, ranks.shared())
    finally:
        os.unlink(path)


@case
def state_that_does_not_fit_changes_nothing():
    def run(_):
        zt, model = zero(make())
        optimizer = zt.AdamW(model, lr=1e-3)
        train(model, optimizer, 1)
        good, job = optimizer.state_dict(), model.sharded.client.job
        before = model.sharded.client.query("checksum", job)

        def changed(change):
            bad = copy.deepcopy(good)
            change(bad)
            return bad
        load = optimizer.load_state_dict
        raises(ValueError, ["groups"], load, changed(lambda d: d["param_groups"].append({"params": []})))
        raises(ValueError, ["group 0"], load, changed(lambda d: d["param_groups"][0]["params"].pop()))
        raises(ValueError, ["shape"], load, changed(lambda d: d["state"][5].update(exp_avg=torch.zeros(3))))
        raises(ValueError, ["amsgrad"], load, changed(lambda d: d["state"][5].update(max_exp_avg_sq=1)))
        raises(ValueError, ["exp_avg_sq"], load, changed(lambda d: d["state"][5].pop("exp_avg_sq")))
        raises(ValueError, ["momentum_buffer", "another optimizer"], load,
               changed(lambda d: d["state"][5].update(momentum_buffer=torch.zeros(3))))
        raises(ValueError, ["decoupled"], load,
               changed(lambda d: d["param_groups"][0].update(decoupled_weight_decay=False)))
        model(batch_of(1)).backward()
        raises(RuntimeError, ["between steps"], load, good)
        optimizer.zero_grad()
        assert model.sharded.client.query("checksum", job) == before
        load(changed(lambda d: d["state"].pop(0)))  # as torch: a parameter without state begins anew
        assert 0 not in optimizer.state_dict()["state"] and 1 in optimizer.state_dict()["state"]
    ranks.run(run, 1, ranks.shared())


if __name__ == "__main__":
    ranks.main()
