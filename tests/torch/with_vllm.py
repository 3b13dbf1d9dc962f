#!/usr/bin/env python3
"""zerod.torch.vllm with vLLM's own classes: registered by its entry point, and each tensor that is loaded has the
trainer's SHA-256.  with_vllm.sh runs this file."""
import contextlib
import hashlib
import os
import sys
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import until  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from vllm import plugins  # noqa: E402
from vllm.config.parallel import ParallelConfig  # noqa: E402
from vllm.config.weight_transfer import WeightTransferConfig  # noqa: E402
from vllm.distributed.weight_transfer.base import WeightTransferEngine  # noqa: E402
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: E402
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading  # noqa: E402
from vllm.model_executor.model_loader.weight_utils import default_weight_loader  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import Net, full, in_rank, make, train  # noqa: E402

CPU = torch.device("cpu")


class Served(Net):
    """A model as vLLM's are: load_weights(), and parameters with loaders.  fails_after: tensors."""

    fails_after = None

    def load_weights(self, weights):
        parameters, loaded = dict(self.named_parameters()), set()
        for name, values in weights:
            if len(loaded) == self.fails_after:
                raise MemoryError("no room for more")
            getattr(parameters[name], "weight_loader", default_weight_loader)(parameters[name], values)
            loaded.add(name)
        return loaded


def engine_of(model, **parallel):
    """By the factory, as vLLM's worker makes it."""
    plugins.load_general_plugins()
    config = types.SimpleNamespace(parallel_config=ParallelConfig(**parallel), model_config=None)
    return WeightTransferEngineFactory.create_engine(WeightTransferConfig(backend="zerod"), config, CPU, model)


def sums(tensors):
    """{name: SHA-256}, as vLLM's weight_checker has them."""
    return {n: hashlib.sha256(t.detach().contiguous().view(torch.uint8).numpy()).hexdigest() for n, t in tensors.items()}


def served(model):
    return sums(dict(model.named_parameters()))


def init(engine, **named):
    engine.init_transfer_engine(engine.parse_init_info({"timeout": 10, **named}))


def update(engine, **wanted):
    engine.start_weight_update()
    engine.update_weights(wanted)
    engine.finish_weight_update()


def holds_one(model):
    """No call waits for a release, so the daemon hears of one a moment later."""
    until(lambda: model.sharded.client.query("status")["jobs"][0]["readers"]["held"] == 1, what="one version that is held")


@contextlib.contextmanager
def scene(**parallel):
    """A trainer's model and optimizer, a served model and its engine."""
    model = zt.shard(make())
    with torch.no_grad():
        other = Served()
    record_metadata_for_reloading(other)
    engine = engine_of(other, **parallel)
    init(engine, job=model.sharded.client.job)
    yield model, zt.AdamW(model, lr=1e-2), other, engine
    engine.shutdown()


@case
def is_registered_by_its_entry_point():
    def run():
        for _ in range(2):
            plugins.plugins_loaded = False
            plugins.load_general_plugins()
        engine = engine_of(torch.nn.Linear(1, 1))
        assert isinstance(engine, WeightTransferEngine) and type(engine).__module__ == "zerod.torch.vllm"
    ranks.alone(run)


@case
def each_version_is_the_trainers():
    def run():
        with scene() as (model, optimizer, other, engine):
            for version in range(3):
                update(engine)
                assert engine.version == version and served(other) == sums(full(model))
                holds_one(model)
                train(model, optimizer, 1)
            update(engine, newer_than=2)
            assert engine.version == 3
            update(engine, version=3)
            assert engine.version == 3 and served(other) == sums(full(model))
            engine.shutdown()
            assert served(other) == sums(full(model))
    in_rank(run)


@case
def an_engine_names_its_dtype():
    def run():
        with scene() as (model, _, other, engine):
            init(engine, job=model.sharded.client.job, dtype="bfloat16")
            update(engine)
            assert served(other) == sums({n: t.bfloat16().to(t.dtype) for n, t in full(model).items()})
            raises(ValueError, "half a float", init, engine, job=model.sharded.client.job, dtype="half a float")
    in_rank(run)


@case
def wrong_keys_and_versions_change_nothing():
    def run():
        with scene() as (model, optimizer, other, engine):
            update(engine)
            train(model, optimizer, 2)
            before = served(other)
            raises(ValueError, "names", engine.parse_init_info, {"names": []})
            for wrong, kind, words in (({"names": []}, ValueError, "names"), ({"version": 1}, zerod.Gone, "version 1"),
                                       ({"version": -1}, ValueError, "version"),
                                       ({"version": 2, "newer_than": 1}, ValueError, "not both")):
                engine.start_weight_update()
                raises(kind, words, engine.update_weights, wrong)
                assert served(other) == before and engine.version == 0, wrong
            init(engine, job=model.sharded.client.job, timeout=0.3)
            raises(zerod.Deadline, "stands at version 2", engine.update_weights, {"newer_than": 2})
            init(engine, job="nothing", timeout=0.3)
            raises(zerod.NoJob, "'nothing'", engine.start_weight_update)
            assert served(other) == before
    in_rank(run)


@cases_of([0, 1, 7])
def an_update_that_fails_leaves_the_last_version(after):
    def run():
        with scene() as (model, optimizer, other, engine):
            update(engine)
            before = served(other)
            train(model, optimizer, 1)
            original = other.load_weights

            def once(weights):
                other.fails_after, other.load_weights = after, original
                try:
                    return original(weights)
                finally:
                    other.fails_after = None
            other.load_weights = once
            engine.start_weight_update()
            raises(MemoryError, "no room", engine.update_weights, {})
            assert served(other) == before and engine.version == 0
            update(engine)
            assert served(other) == sums(full(model)) != before and engine.version == 1
    in_rank(run)


@case
def a_first_update_that_fails_says_so():
    def run():
        with scene() as (_, _, other, engine):
            other.fails_after = 3
            engine.start_weight_update()
            raises(RuntimeError, "first update failed", engine.update_weights, {})
            other.fails_after = None
            update(engine)
            assert engine.version == 0
    in_rank(run)


@case
def several_workers_are_told_the_version():
    def run():
        with scene() as (model, optimizer, other, engine):
            engine.parallel_config = types.SimpleNamespace(world_size_across_dp=2)
            engine.start_weight_update()
            for wanted in ({}, {"newer_than": 0}):
                raises(ValueError, ["several workers", "version"], engine.update_weights, wanted)
            update(engine, version=0)
            before = sums(full(model))
            assert served(other) == before
            train(model, optimizer, 2)
            for version in (2, 0, 2):  # as if another worker had failed twice
                engine.start_weight_update()
                engine.update_weights({"version": version})
                assert engine.version == version and served(other) == (sums(full(model)) if version else before)
            engine.finish_weight_update()
            holds_one(model)
    in_rank(run)


if __name__ == "__main__":
    ranks.main()
