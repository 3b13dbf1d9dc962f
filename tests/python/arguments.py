#!/usr/bin/env python3
"""A wrong argument raises an exception that names it; none crashes or breaks the client."""
import array
import ctypes
import math
import os

from common import SETS, Cluster, attached, raises, small_layout, zerod
from harness import case, cases_of, main

WRONG_TYPES = {"none": None, "text": "1", "float": 1.0, "list": [1], "object": object(), "bytes": b"1"}
WRONG_NUMBERS = {"negative": -1, "large": 2**32, "huge": 2**64, "enormous": 10**1000}
WRONG_WORDS = {"none": None, "number": 1, "bytes": b"fp32", "unknown": "fp64", "empty": "", "zero_byte": "fp32\0"}


def still_works(client):
    client.fetch(0)
    assert client.step(SETS).skipped is False


@cases_of({**WRONG_TYPES, **WRONG_NUMBERS})
def wrong_group_arguments(what):
    wrong = {**WRONG_TYPES, **WRONG_NUMBERS}[what]
    with attached() as (_, client):
        for call in (client.fetch, client.prefetch, client.release, client.grad, client.push,
                     lambda g: client.push(g, bytes(3))):
            with raises(TypeError if what in WRONG_TYPES else ValueError, "group"):
                call(wrong)
        still_works(client)


@case
def unknown_groups_and_tensors():
    with attached() as (_, client):
        for call in (client.fetch, client.prefetch, client.release, client.grad, client.push,
                     lambda g: client.push(g, b"\1")):
            for group in (2, 2**32 - 1):
                with raises(zerod.NoGroup):
                    call(group)
        for tensor in (4, 2**32 - 1):
            with raises(zerod.NoGroup):
                client.get(tensor, "master", 0, 1, bytearray(4))
            with raises(zerod.NoGroup):
                client.get(tensor, "master", 0, 1, ctypes.addressof(ctypes.c_float()))
        still_works(client)


@cases_of({**WRONG_TYPES, **WRONG_NUMBERS})
def wrong_tensors_and_ranges(what):
    wrong, kind = {**WRONG_TYPES, **WRONG_NUMBERS}[what], TypeError if what in WRONG_TYPES else ValueError
    wrong = 2**64 if what == "large" else wrong
    with attached() as (_, client):
        memory = (ctypes.c_float * 15)()
        address = ctypes.addressof(memory)
        for call in (client.get, client.put):
            with raises(kind, "tensor"):
                call(wrong, "master", 0, 1, address)
            with raises(kind, "first"):
                call(0, "master", wrong, 1, address)
            with raises(kind, "count"):
                call(0, "master", 0, wrong, address)
        still_works(client)


@cases_of([(0, 16), (15, 1), (16, 0), (2**63, 2**63), (1, 2**64 - 1)], "{0[0]}_{0[1]}")
def ranges_outside_the_tensor(values):
    first, count = values
    with attached() as (_, client):
        memory = (ctypes.c_float * 15)()
        for call in (client.get, client.put):
            with raises(zerod.OutOfRange):
                call(0, "master", first, count, ctypes.addressof(memory))
        still_works(client)


@cases_of(WRONG_WORDS)
def wrong_planes(what):
    with attached() as (_, client), raises((TypeError, ValueError), "plane"):
        client.get(0, WRONG_WORDS[what], 0, 1, bytearray(4))


@case
def planes_that_clients_cannot_read():
    with attached() as (_, client):
        with raises(zerod.Invalid):
            client.get(0, "grad", 0, 1, bytearray(4))
        with raises(zerod.Invalid, "frozen"):
            client.get(2, "exp_avg", 0, 1, bytearray(4))


@case
def wrong_addresses():
    with attached() as (_, client):
        for call in (client.get, client.put):
            for address, kind in ((0, ValueError), (-1, ValueError), (2**64, ValueError), (None, TypeError),
                                  (1.5, TypeError), ("x", TypeError), (object(), TypeError)):
                with raises(kind):
                    call(0, "master", 0, 1, address)
            call(0, "master", 3, 0, 0)  # zero elements need no memory


@case
def buffers_must_have_the_exact_size():
    with attached() as (_, client):
        for call in (client.get, client.put):
            for size in (0, 1, 3, 5, 8):
                with raises(ValueError, "bytes"):
                    call(0, "master", 0, 1, bytearray(size))
            with raises(ValueError, "contiguous"):
                call(0, "master", 0, 2, memoryview(array.array("f", range(4)))[::2])
            call(0, "master", 0, 0, bytearray())
            call(0, "step", 0, 1, bytearray(8))


@case
def read_only_memory_can_be_put_only():
    with attached() as (_, client):
        with raises(TypeError, "read-only"):
            client.get(0, "master", 0, 1, b"1234")
        client.put(0, "master", 0, 1, b"\0\0\x80\x3f")
        value = array.array("f", [0])
        client.get(0, "master", 0, 1, memoryview(value))
        assert value[0] == 1


@case
def present_has_a_byte_for_each_tensor():
    with attached() as (_, client):
        client.grad(0)
        for present, kind in ((b"", ValueError), (b"\1\1", ValueError), (bytes(4), ValueError), (3, TypeError),
                              ("abc", TypeError), ([1, 1, 1], TypeError)):
            with raises(kind):
                client.push(0, present)
        client.push(0, bytearray([1, 0, 0]))
        still_works(client)


@cases_of({"none": None, "numbers": [1.0], "short": [()], "long": [(1, 2, 3, 4, 5, 6, 7, 8)], "text": [("a", 0, 0, 0, 0)],
           "none_inside": [(None, 0, 0, 0, 0)], "letters": ["abcde"]}.items(), "{0[0]}")
def wrong_hyperparameters(values):
    with attached() as (_, client):
        with raises(TypeError):
            client.step(values[1])
        still_works(client)


@case
def too_many_or_too_few_sets():
    with attached() as (_, client):
        with raises(ValueError, "256"):
            client.step(SETS * 257)
        client.step(SETS * 256)
        layout = small_layout()
        layout.tensor(1, "other", [2], set=3)
    with attached(layout=layout) as (_, client):
        with raises(zerod.Invalid, "other"):
            client.step(SETS * 3)
        client.step(SETS * 4)


@cases_of([("clip_norm", "1", TypeError), ("clip_norm", None, TypeError), ("clip_norm", -1.0, zerod.Invalid),
           ("clip_norm", math.nan, zerod.Invalid), ("loss_scale", -1.0, zerod.Invalid),
           ("loss_scale", math.inf, zerod.Invalid), ("growth_interval", -1, ValueError),
           ("growth_interval", 2**32, ValueError), ("growth_interval", 1.0, TypeError), ("loss_scale", 10**400, ValueError)], "{0[0]}_{0[1]!r:.20}")
def wrong_numbers_of_a_step(values):
    name, value, kind = values
    with attached() as (_, client):
        with raises(kind, name if kind in (TypeError, ValueError) else ""):
            client.step(SETS, **{name: value})
        still_works(client)


@cases_of([("hold_groups", -1), ("hold_groups", 2**32), ("push_groups", "all"), ("grad_dtype", "int8"),
           ("grad_dtype", 1), ("reduce_dtype", None), ("reduce_dtype", "fp8"), ("accumulate", "bf16"), ("device", 0), ("device", "cpu"),
           ("device", "cuda"), ("device", "cuda:0\0")], "{0[0]}_{0[1]!r:.20}")
def wrong_needs(values):
    name, value = values
    with Cluster(1) as cluster, zerod.connect(socket=cluster[0].socket) as client:
        with raises((TypeError, ValueError, zerod.Invalid), name):
            client.attach(small_layout(), **{name: value})
        client.attach(small_layout())


@case
def accumulate_in_the_wires_dtype():
    with Cluster(1) as cluster, zerod.connect("job", socket=cluster[0].socket) as client:
        client.attach(small_layout(), reduce_dtype="fp16", accumulate="wire")
        assert cluster[0].job("job")["accumulate"] == "wire"


@case
def a_device_without_its_plugin():
    with Cluster(1) as cluster, zerod.connect(socket=cluster[0].socket) as client:
        os.environ["ZEROD_CUDA_PLUGIN"] = "/nonexistent/plugin.so"
        try:
            with raises(zerod.Gpu, "/nonexistent/plugin.so"):
                client.attach(small_layout(), device="cuda:0")
        finally:
            del os.environ["ZEROD_CUDA_PLUGIN"]
        client.attach(small_layout())


@cases_of({"text": "0", "float": 0.0, "negative": -1, "enormous": 2**64})
def wrong_streams(stream):
    stream = {"text": "0", "float": 0.0, "negative": -1, "enormous": 2**64}[stream]
    with attached() as (_, client):
        for call in (client.release, client.push):
            with raises((TypeError, ValueError), "stream"):
                call(0, stream=stream)
        with raises((TypeError, ValueError), "stream"):
            client.step(SETS, stream=stream)
        still_works(client)


@case
def wrong_layouts():
    with Cluster(1) as cluster, zerod.connect(socket=cluster[0].socket) as client:
        for wrong in (7, "layout", object()):
            with raises(TypeError, "Layout"):
                client.attach(wrong)
        with raises(zerod.Invalid):
            client.attach()  # only an observer attaches without a layout
        with raises(zerod.Invalid):
            client.attach(zerod.Layout())
        client.attach(small_layout())


# ---- layouts -------------------------------------------------------------------------

@case
def wrong_names():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    for name, kind in ((None, TypeError), (1, TypeError), (b"x", TypeError), ("a\0b", ValueError), ("\ud800", ValueError),
                       ("", zerod.Invalid), ("x" * 256, zerod.Invalid)):
        with raises(kind):
            layout.group(name, "fp32")
        with raises(kind):
            layout.tensor(0, name, [1])
    layout.tensor(0, "x" * 255, [1])
    assert layout.find("x" * 255) == 0


@case
def duplicate_names():
    with Cluster(1) as cluster, zerod.connect(socket=cluster[0].socket) as client:
        layout = small_layout()
        layout.tensor(1, "w", [1])
        with raises(zerod.Invalid, "'w'"):
            client.attach(layout)


@cases_of({"negative": [-1], "float": [1.0], "text": "ab", "none": None, "number": 3, "huge": [2**64], "many": [1] * 9,
           "none_inside": [None]}.items(), "{0[0]}")
def wrong_shapes(values):
    layout = zerod.Layout()
    layout.group("g", "fp32")
    with raises((TypeError, ValueError)):
        layout.tensor(0, "t", values[1])
    assert layout.tensors == 0


@case
def too_large_shapes():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    for shape in ([2**63], [2**32, 2**32], [2**41], [2**64 - 1] * 8):
        with raises(zerod.Error):
            layout.tensor(0, "t", shape)
    assert layout.tensors == 0 and layout.group_elements(0) == 0


@cases_of([("set", -1), ("set", 256), ("set", "x"), ("init", "ones"), ("init", 0), ("seed", -1), ("seed", 2**64),
           ("value", "x"), ("value", None)], "{0[0]}_{0[1]!r:.20}")
def wrong_tensor_arguments(values):
    name, value = values
    layout = zerod.Layout()
    layout.group("g", "fp32")
    with raises((TypeError, ValueError)):
        layout.tensor(0, "t", [1], **{name: value})


@case
def wrong_matrices():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    for shape, rows, kind, word in (([4, 2], [1, 2], zerod.Invalid, "more rows"), ([4, 2], [3, 2], zerod.Invalid, "more rows"),
                                    ([4, 2], [], zerod.Invalid, "no matrices"), ([4, 2], [4, 0], zerod.Invalid, "without rows"),
                                    ([4], [4], zerod.Invalid, "two dimensions"), ([4, 2], [-1], ValueError, "rows of a matrix"),
                                    ([4, 2], ["4"], TypeError, "rows of a matrix")):
        with raises(kind, word):
            layout.tensor(0, f"{shape}{rows}", shape, optimizer="muon", matrices=rows)
    with raises(TypeError, "optimizer"):
        layout.tensor(0, "t", [4, 2], optimizer=3)
    for optimizer, shape, words in (("muon", [4], ["muon updates matrices", "'t'"]), ("moun", [4, 4], ["moun"])):
        layout = zerod.Layout()
        layout.tensor(layout.group("g", "fp32"), "t", shape, optimizer=optimizer)
        with raises(zerod.Invalid, *words), attached(layout=layout):
            pass


@cases_of({"adjust_lr": "other", "ns_steps": 100, "momentum": 1.0, "eps": 0.0, "ns_coefficients": (1, 2)})
def wrong_hyperparameters_of_muon(name):
    wrong = {"adjust_lr": "other", "ns_steps": 100, "momentum": 1.0, "eps": 0.0, "ns_coefficients": (1, 2)}[name]
    layout = zerod.Layout()
    layout.tensor(layout.group("g", "fp32"), "t", [4, 4], optimizer="muon")
    with attached(layout=layout) as (_, client):
        with raises((ValueError, zerod.Invalid), name):
            client.step([zerod.MuonSet(**{name: wrong})])
        assert client.step([zerod.MuonSet()]).skipped is False


@case
def wrong_groups_of_a_layout():
    layout = zerod.Layout()
    with raises(zerod.Error):
        layout.tensor(0, "t", [1])
    for ranks, kind in (([], ValueError), ([-1], ValueError), ([4096], ValueError), (["0"], TypeError), (3, TypeError)):
        with raises(kind):
            layout.group("g", "fp32", ranks)
    for divisor in ("1", None, [1]):
        with raises(TypeError):
            layout.group("g", "fp32", divisor=divisor)
    for divisor in (-1.0, math.nan, math.inf):
        with raises(zerod.Invalid):
            layout.group("g", "fp32", divisor=divisor)
    assert layout.groups == 0
    layout.group("a", "fp32")
    layout.group("b", "fp32")
    for group in (-1, 2**32):
        with raises(ValueError):
            layout.tensor(group, "t", [1])
    for group in (0, 2, 2**32 - 1):
        with raises(zerod.Error):
            layout.tensor(group, "t", [1])


@case
def unknown_groups_and_tensors_of_a_layout():
    layout = small_layout()
    for read in (layout.group_name, layout.dtype, layout.group_elements, layout.group_tensors):
        for index in (-1, 2, 2**32, 2**100):
            with raises(zerod.NoGroup):
                read(index)
    for read in (layout.tensor_name, layout.tensor_group, layout.tensor_elements, layout.shape, layout.frozen,
                 layout.offset):
        for index in (-1, 4, 2**32, 2**100):
            with raises(zerod.NoGroup):
                read(index)
        with raises(TypeError):
            read("w")


# ---- connecting ----------------------------------------------------------------------

@cases_of([("job", 1), ("job", "a b"), ("job", ""), ("job", "a\0"), ("job", "x" * 256), ("timeout", 0), ("timeout", -1),
           ("timeout", math.nan), ("timeout", math.inf), ("timeout", 1e12), ("timeout", "1"),
           ("socket", 3), ("socket", "/nowhere/" * 30), ("socket", "a\0"), ("rank", "0"), ("rank", 5),
           ("world_size", 0), ("world_size", 2**40), ("local_world_size", 2)], "{0[0]}_{0[1]!r:.20}")
def wrong_connections(values):
    name, value = values
    with raises((TypeError, ValueError, zerod.Invalid), name if name not in ("job", "socket") else ""):
        zerod.connect(**{name: value})


@cases_of([("job", 1), ("job", "a b"), ("timeout", 0), ("timeout", math.nan), ("timeout", "1"), ("socket", 3)],
          "{0[0]}_{0[1]!r:.20}")
def wrong_followers(values):
    name, value = values
    with raises((TypeError, ValueError, zerod.Invalid), name if name == "timeout" else ""):
        zerod.follow(**{"job": "job", name: value}).wait()


@cases_of([("newer_than", -1), ("newer_than", 1.0), ("newer_than", 2**64 - 1), ("version", -1), ("version", "1"),
           ("version", 2**64), ("timeout", 0), ("timeout", math.inf), ("timeout", "1")], "{0[0]}_{0[1]!r:.20}")
def wrong_waits(values):
    name, value = values
    with attached("job") as (cluster, _), zerod.follow("job", socket=cluster[0].socket) as job:
        with raises((TypeError, ValueError), name):
            job.wait(**{name: value})
        with raises(ValueError, "not both"):
            job.wait(newer_than=0, version=0)
        weights = job.wait()
        for tensor, kind in ((-1, zerod.NoGroup), (4, zerod.NoGroup), ("w", TypeError)):
            with raises(kind):
                weights.view(tensor)


@case
def nobody_listens():
    with raises(zerod.Closed, "/nowhere/zerod.sock", "running"):
        zerod.connect(socket="/nowhere/zerod.sock")


@case
def wrong_queries():
    with attached() as (_, client):
        for arguments, kind in (((None,), TypeError), ((1,), TypeError), (("a\0",), ValueError), (("jobs", 1), TypeError),
                                (("x" * 2**20,), zerod.Error), (("",), zerod.Error)):
            with raises(kind):
                client.query(*arguments)
        still_works(client)


if __name__ == "__main__":
    main()
