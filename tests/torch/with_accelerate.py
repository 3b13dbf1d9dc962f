#!/usr/bin/env python3
"""A script for accelerate.Accelerator trains alike with zerod.accelerate.Accelerator: losses, gradient norms and learning
rates, on one rank and on two; its checkpoints go to accelerate and back."""
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import free_ports  # noqa: E402
from common import adapters_only, frozen_files, raises  # noqa: E402
from harness import case, cases_of  # noqa: E402

import accelerate  # noqa: E402
import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import zerod.accelerate  # noqa: E402
import zerod.torch as zt  # noqa: E402

TOLERANCE = 1e-5
STEPS, SAVE_AT = 6, 3
WIDTH, ROWS, BATCH = 16, 22, 2  # the last batch of two ranks repeats rows
ADAPTERS = "1.up", "2.norm", "bias"
KINDS = {"plain": accelerate.Accelerator, "zerod": zerod.accelerate.Accelerator}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, WIDTH), Block(), Block(), nn.Linear(WIDTH, 1))


def rows():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 4, generator=draw)
    return TensorDataset(x, x.prod(1, keepdim=True))


def run(function, placement, *arguments, **options):
    """ranks.run() with what torch.distributed needs; each rank's value."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    return ranks.run(function, placement, ranks.shared(2), arguments=arguments, environment=place, **options)


def made(kind, options, optimizer=torch.optim.AdamW, trained=("",), **hyper):
    """Accelerator, and what it has prepared; trained: words in the names of what is not frozen."""
    accelerator, model = KINDS[kind](cpu=True, **options), adapters_only(net(), trained)
    decays = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decays}, {"params": rest, "weight_decay": 0.0}]
    optimizer = optimizer(groups, **{"lr": 1e-2, "weight_decay": 0.1, **hyper})
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(rows(), BATCH), scheduler)


def train(_rank, kind, options, loading=None, saving=None, **more):
    """[(loss of the step, gradient norm, learning rate)], an evaluation's predictions; checkpoints on the way."""
    accelerator, model, optimizer, data, scheduler = made(kind, options, **more)
    if loading:
        accelerator.load_state(loading)
    told, losses = [], []
    while len(told) < STEPS:
        for x, y in data:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                losses.append(float(accelerator.reduce(loss.detach(), "mean")))
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                told.append((sum(losses), float(norm), scheduler.get_last_lr()[0]))
                losses.clear()
                if saving and len(told) == SAVE_AT:
                    accelerator.save_state(saving)
    model.eval()
    with torch.no_grad():
        found = [accelerator.gather_for_metrics(model(x)) for x, _ in data]
    accelerator.end_training()
    if distributed.is_initialized():
        distributed.barrier()
    return told[:STEPS], torch.cat(found).flatten().tolist()


def alike(found, wanted, what):
    assert len(found[1]) == ROWS and len(found[0]) == len(wanted[0]), f"{what}: {found}"
    for got, want in zip([*found[0], tuple(found[1])], [*wanted[0], tuple(wanted[1])]):
        off = max(abs(a - b) for a, b in zip(got, want))
        assert off <= TOLERANCE, f"{what}: off by {off:.1e}\n{found}\n{wanted}"


@cases_of([[0], [0, 1]], "on_nodes_{}")
def trains_as_with_accelerate(placement):
    """Accumulated gradients, a shorter last step of an epoch, two param groups, a schedule made before prepare()."""
    options = {"gradient_accumulation_steps": 2}
    wanted = run(train, placement, "plain", options)[0]
    assert wanted[0][0][1] > 0.5, "nothing is clipped"
    for more in ({"stage": 3}, {"stage": 2, "accumulate_in": "trainer"}):
        for found in run(train, placement, "zerod", {**options, **more}):
            alike(found, wanted, more)


def train_by_sgd(rank, kind):
    return train(rank, kind, {}, optimizer=torch.optim.SGD, momentum=0.9)


def train_adapters(rank, kind, options):
    return train(rank, kind, options, trained=ADAPTERS)


@case
def frozen_parameters_in_an_optimizer_are_of_a_base():
    with frozen_files(adapters_only(net(), ADAPTERS)) as (path,):
        wanted = run(train_adapters, [0, 1], "plain", {})[0]
        for found in run(train_adapters, [0, 1], "zerod", {"base": [path]}):
            alike(found, wanted, "on a base")


@case
def an_optimizer_of_torch_becomes_the_services():
    alike(run(train_by_sgd, [0], "zerod")[0], run(train_by_sgd, [0], "plain")[0], "SGD with momentum")


@case
def checkpoints_go_to_accelerate_and_back():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        wanted = run(train, [0, 1], "zerod", {}, None, f"{directory}/zerod")[0]
        run(train, [0, 1], "plain", {}, None, f"{directory}/plain")
        assert sorted(os.listdir(f"{directory}/zerod")) == sorted(os.listdir(f"{directory}/plain"))
        for source in ("zerod", "plain"):
            again = [run(train, [0, 1], kind, {}, f"{directory}/{source}")[0] for kind in ("plain", "zerod")]
            alike(again[1], again[0], f"from the checkpoint of {source}")
        assert abs(again[1][0][0][1] - wanted[0][0][1]) > 1e-3, "nothing was loaded"


def train_in_bf16(rank, kind):
    return train(rank, kind, {"mixed_precision": "bf16"})


@case
def bf16_is_autocast():
    alike(run(train_in_bf16, [0], "zerod")[0], run(train_in_bf16, [0], "plain")[0], "bf16")


def survive(_rank, daemon, until=5):
    """Parameters and statistics after a loop by zt.steps(); in its third step rank 1 kills the daemon, once."""
    accelerator = KINDS["zerod"](cpu=True, client=zerod.connect(timeout=120))
    model = nn.Sequential(*net(), nn.BatchNorm1d(1))
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), DataLoader(rows(), BATCH))
    batches = list(data)
    for step in zt.steps(model, until=until):
        with step as t:
            accelerator.backward(nn.functional.mse_loss(model(batches[t][0]), batches[t][1]))
            if t == 2 and daemon and accelerator.process_index == 1:
                os.kill(daemon, signal.SIGKILL)
                daemon = None
            optimizer.step()
    values = [*(model.sharded.read(p) for p in model.sharded.params), model[-1].running_mean, model[-1].running_var]
    accelerator.wait_for_everyone()
    return torch.cat(values).tolist()


@case
def a_loop_by_steps_goes_on_after_a_daemon_was_lost():
    cluster = ranks.shared(2)
    wanted = run(survive, [0, 1], None)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    with ranks.Ranks(survive, [0, 1], cluster, arguments=(cluster[1].process.pid,), environment=place) as job:
        assert cluster[1].process.wait(ranks.DEADLINE_S) == -signal.SIGKILL
        cluster[1].start()
        assert job.finish() == wanted
        cluster[0].ctl("drop", job.job)
    run(survive, [0, 1], None, 3, job="later", keep=True)
    assert run(survive, [0, 1], None, job="later") == wanted, "started again"


def train_two(rank, kind):
    """A generator and its critic: losses, and the jobs at the end."""
    options = {} if kind == "plain" else {"timeout": 120}
    accelerator = KINDS[kind](cpu=True, **options)
    torch.manual_seed(0)
    maker, critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(4, 1)
    made = accelerator.prepare(maker, critic, torch.optim.Adam(maker.parameters(), lr=1e-2), torch.optim.SGD(critic.parameters(), 0.1))
    maker, critic, of_maker, of_critic = made
    losses = []
    for t in range(4):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * t + rank))
        of_critic.zero_grad()
        loss = (critic(maker(x).detach()) - critic(x)).mean().square()
        accelerator.backward(loss)
        of_critic.step()
        of_maker.zero_grad()
        judged = -critic(maker(x)).mean()
        accelerator.backward(judged)
        of_maker.step()
        losses += [float(accelerator.reduce(v.detach(), "mean")) for v in (loss, judged)]
    jobs = [] if kind == "plain" else [m.sharded.client.job for m in (maker, critic)]
    accelerator.wait_for_everyone()
    return losses, jobs


@case
def two_models_have_a_job_each():
    wanted = run(train_two, [0, 1], "plain")
    found = run(train_two, [0, 1], "zerod", job="two")
    ranks.shared(2)[0].ctl("drop", "two-2")
    for (got, jobs), (want, _) in zip(found, wanted):
        assert jobs == ["two", "two-2"], jobs
        assert max(abs(a - b) for a, b in zip(got, want)) <= TOLERANCE, (got, want)


def refuses(_rank):
    make = zerod.accelerate.Accelerator
    raises(TypeError, "nonsense", make, cpu=True, nonsense=1)
    raises(ValueError, "accumulate_in", make, cpu=True, accumulate_in="nowhere")
    accelerator, model, optimizer, _, _ = made("zerod", {"gradient_accumulation_steps": 2})
    assert accelerator.unwrap_model(model) is model and accelerator.is_main_process
    assert isinstance(optimizer.optimizer, zt.AdamW)
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 4)).sum())
        raises(RuntimeError, "accelerator.sync_gradients", accelerator.clip_grad_norm_, model.parameters(), 1.0)
    raises(NotImplementedError, "clip_grad_norm_", accelerator.clip_grad_value_, model.parameters(), 1.0)
    other = net()
    raises(ValueError, "Adagrad", accelerator.prepare, other, torch.optim.Adagrad(other.parameters()))


def refuses_argument(_rank, name, value):
    raises(ValueError, name, zerod.accelerate.Accelerator, cpu=True, **{name: value})


@case
def what_cannot_be_is_refused_by_name():
    run(refuses, [0])
    run(refuses_argument, [0], "dynamo_backend", "inductor")
    run(refuses_argument, [0], "mixed_precision", "fp16")


if __name__ == "__main__":
    ranks.main()
