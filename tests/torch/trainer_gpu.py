#!/usr/bin/env python3
"""zerod.transformers.Trainer with its model on a GPU does what it does in host memory, with the GPU's random numbers.

On a real GPU with ZEROD_TEST_CUDA_PLUGIN=.../zerod-cuda.so, one rank next to transformers.Trainer; else cases of
trainer.py on the stand-in of storages.py.
"""
import os
import random
import sys

REAL = os.environ.get("ZEROD_TEST_CUDA_PLUGIN")  # harness.py removes it

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
import harness  # noqa: E402
from harness import case  # noqa: E402

import numpy  # noqa: E402
import torch  # noqa: E402

try:
    import trainer
except ImportError as missing:
    ranks.leave_out(str(missing))

import zerod.transformers  # noqa: E402
from zerod import _replay  # noqa: E402
from zerod.torch.place import Host  # noqa: E402

import storages  # noqa: E402

plain_gpt2 = trainer.gpt2


def noisy_gpt2():
    """Uses numbers of the GPU's own generator."""
    model = plain_gpt2()

    def noise(module, _inputs, output):
        return output * (1 + 0.1 * storages.Stand.draw()) if module.training else output
    model.transformer.drop.register_forward_hook(noise)
    return model


def with_noise(function):
    def run():
        trainer.gpt2 = noisy_gpt2
        try:
            function()
        finally:
            trainer.gpt2 = plain_gpt2
    run.__name__ = function.__name__
    return run


NOISY = ("a_lost_daemon_is_waited_for", "processes_started_again_go_on")
ALIKE = "one_rank_trains_as_without"
if REAL:
    os.environ["ZEROD_CUDA_PLUGIN"] = os.path.abspath(REAL)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with several, transformers.Trainer uses all
    trainer.COMMON["use_cpu"] = False
    harness.cases[:] = [c for c in harness.cases if c.__name__ == ALIKE]
else:
    storages.stand_in(sys.argv[1])
    harness.cases[:] = [with_noise(c) if c.__name__ in NOISY else c for c in harness.cases
                        if c.__name__ in (ALIKE, *NOISY)]


def another_place(_rank, directory):
    """A model that was sharded for the host."""
    model = trainer.gpt2()
    zerod.torch.shard(model)
    model.sharded.place.device = torch.device("meta")
    try:
        trainer.trainer_of(zerod.transformers.Trainer, directory, model, {})
    except ValueError as error:
        return str(error)
    return "not refused"


@case
@trainer.in_directory
def a_model_that_is_elsewhere_is_refused(directory):
    said = trainer.run(another_place, [0], ranks.shared(2), directory)[0]
    assert "sharded for meta" in said and "use_cpu" in said, said


@case
def what_is_kept_is_with_or_without_a_generator():
    """A rank on a GPU goes on where one in host memory stood, and the other way round."""
    place = storages.Stand()
    storages.Stand.draw()
    states = _replay.RandomStates.now(place)
    position, found = _replay.unpack(_replay.pack({"global_step": 3}, states))
    assert position == {"global_step": 3} and torch.equal(found.device, states.device)
    storages.Stand.draw()
    found.restore(Host())
    assert not torch.equal(place.random_state(), states.device)
    found.restore(place)
    assert torch.equal(place.random_state(), states.device)
    _, found = _replay.unpack(_replay.pack({}, _replay.RandomStates.now(Host())))
    assert found.device is None
    found.restore(place)
    assert torch.equal(place.random_state(), states.device)
    assert _replay.unpack(b"something else") is None


@case
def generators_that_nobody_has_used_take_no_bytes():
    random.seed(3)
    numpy.random.seed(3)
    sizes = []
    for use in (int, random.random, numpy.random.rand):
        use()
        states = _replay.RandomStates.now(Host())
        blob = _replay.pack({"global_step": 3}, states, 3)
        found = _replay.unpack(blob)[1]
        assert found.python == states.python and (found.numpy[1] == states.numpy[1]).all() and found.numpy[2:] == states.numpy[2:]
        sizes.append(len(blob))
    assert sizes[0] < sizes[1] - 2000 < sizes[2] - 4000, sizes


if __name__ == "__main__":
    ranks.main()
