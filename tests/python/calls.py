#!/usr/bin/env python3
"""The calls of a client on a real daemon, and what they raise."""
import array
import ctypes
import math
import os
import struct

from common import SETS, Cluster, attached, raises, small_layout, together, zerod
from cluster import Tools
from harness import case, cases_of, main
from zerod import _library


def floats(*values):
    return array.array("f", values)


def read(client, tensor, plane="master", first=0, count=None):
    count = client.layout.tensor_elements(tensor) if count is None else count
    values = array.array("f", bytes(4 * count))
    client.get(tensor, plane, first, count, values)
    return list(values)


def read_one(client, tensor, plane):
    value = array.array("Q", [2**63])
    client.get(tensor, plane, 0, 1, value)
    return value[0]


def write_gradient(client, group, value):
    address = client.grad(group)
    n = client.layout.group_elements(group)
    ctypes.memmove(address, struct.pack(f"{n}f", *[value] * n), 4 * n)


def push_all(client, value=0.5):
    for group in range(client.layout.groups):
        write_gradient(client, group, value)
        client.push(group)


def adamw(value, gradients, s):
    """torch.optim.AdamW's arithmetic, on one element."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        value *= 1 - s.lr * s.weight_decay
        m, v = s.beta1 * m + (1 - s.beta1) * g, s.beta2 * v + (1 - s.beta2) * g * g
        value -= s.lr / (1 - s.beta1**t) * m / (math.sqrt(v) / math.sqrt(1 - s.beta2**t) + s.eps)
    return value


def near(value, expected):
    assert abs(value - expected) <= 1e-6 * max(1, abs(expected)), f"{value} is not {expected}"


@case
def puts_are_fetched():
    with attached() as (_, client):
        client.put(0, "master", 0, 15, floats(*range(15)))
        client.put(1, "master", 1, 2, floats(-1, -2))
        view = client.fetch(0)
        layout = client.layout
        assert struct.unpack("15f", ctypes.string_at(view, 60)) == tuple(range(15))
        assert struct.unpack("5f", ctypes.string_at(view + 4 * layout.offset(1), 20)) == (0, -1, -2, 0, 0)
        client.release(0)
        with raises(zerod.NotHeld, "block"):
            client.release(0)


@case
def steps_compute_adamw():
    with attached() as (_, client):
        client.put(0, "master", 0, 15, floats(*[1] * 15))
        for value in (0.5, -0.25, 3):
            push_all(client, value)
            result = client.step(SETS)
        assert (result.version, result.skipped, client.version) == (3, False, 3)
        near(result.grad_norm, 3 * math.sqrt(15 + 5 + 4))
        near(read(client, 0)[7], adamw(1, (0.5, -0.25, 3), SETS[0]))
        assert read_one(client, 0, "step") == 3
        assert read(client, 2) == [0] * 7  # frozen


@case
def tensors_without_gradient_are_not_updated():
    with attached() as (_, client):
        client.put(0, "master", 0, 15, floats(*[1] * 15))
        write_gradient(client, 0, 0.5)
        client.push(0, present=bytes([0, 1, 1]))
        client.step(SETS)
        assert read(client, 0) == [1] * 15 and read_one(client, 0, "step") == 0
        assert read(client, 1)[0] < 0 and read_one(client, 1, "step") == 1


@case
def micro_batches_add_up():
    with attached() as (_, client):
        for last in (False, False, True):
            write_gradient(client, 1, 0.5)
            client.push(1, last=last)
        norm, finite = client.norm()
        near(norm, 1.5 * 2)
        assert finite is True
        client.step(SETS)


@case
def norm_is_clipped():
    with attached() as (_, client):
        push_all(client, 10)
        near(client.step(SETS, clip_norm=1).grad_norm, 10 * math.sqrt(24))
        near(read(client, 0, "exp_avg")[0], (1 - 0.9) / math.sqrt(24))


@case
def overflow_skips_and_halves_the_scale():
    with attached() as (_, client):
        push_all(client, math.inf)
        assert client.norm()[1] is False
        result = client.step(SETS, loss_scale=1024, growth_interval=10)
        assert result.skipped is True and result.loss_scale == client.loss_scale == 512
        assert read(client, 0) == [0] * 15


@case
def step_without_sets_discards_the_gradients():
    with attached() as (_, client):
        push_all(client)
        client.step([])
        push_all(client, 1)
        client.step(SETS)
        assert read_one(client, 0, "step") == 1
        near(read(client, 0, "exp_avg")[0], 1 - 0.9)


@case
def set_of_a_tensor_may_be_chosen_later():
    with attached() as (_, client):
        sets = [*SETS, SETS[0]._replace(lr=0.0, weight_decay=0.0)]
        assert read_one(client, 0, "set") == 0
        push_all(client)
        client.put(0, "set", 0, 1, array.array("Q", [1]))
        client.step(sets)
        assert read(client, 0) == [0] * 15 and read(client, 1)[0] < 0
        assert read_one(client, 0, "set") == 1


@cases_of(["fp32", "bf16", "fp16"])
def values_are_served_as(dtype):
    with attached(layout=small_layout(dtype), hold_groups=zerod.ALL, push_groups=zerod.ALL) as (_, client):
        client.put(3, "master", 0, 4, floats(1, -2, 0.5, 0))
        raw = bytearray(4 * (4 if dtype == "fp32" else 2))
        client.get(3, "serve", 0, 4, raw)
        assert bytes(raw) == ctypes.string_at(client.fetch(1), len(raw))
        known = {"fp32": struct.pack("4f", 1, -2, 0.5, 0), "fp16": struct.pack("4e", 1, -2, 0.5, 0),
                 "bf16": b"\x80\x3f\x00\xc0\x00\x3f\x00\x00"}
        assert bytes(raw) == known[dtype], raw
        with raises(zerod.Invalid, "master"):
            client.put(3, "serve", 0, 4, raw)


@case
def get_and_put_by_address():
    with attached() as (_, client):
        values = (ctypes.c_float * 5)(1, 2, 3, 4, 5)
        client.put(1, "exp_avg", 0, 5, ctypes.addressof(values))
        back = (ctypes.c_float * 3)()
        client.get(1, "exp_avg", 2, 3, ctypes.addressof(back))
        assert list(back) == [3, 4, 5]


@case
def private_views_stay_and_may_be_written():
    with attached(private_views=True) as (_, client):
        client.put(3, "master", 0, 1, floats(7))
        view = client.fetch(1)
        ctypes.memmove(view, struct.pack("f", 8), 4)
        client.release(1)
        client.fetch(0)
        client.release(0)
        assert client.fetch(1) == view and ctypes.string_at(view, 4) == struct.pack("f", 7)


@case
def a_stash_keeps_what_is_written():
    with attached(stash=zerod.Stash(1 << 20, ranks=[0], entry_bytes=1 << 16)) as (_, client):
        client.stash_write(7, array.array("I", range(1000)))
        client.stash_write(8, b"read-only")
        view = client.stash_read(7)
        assert view.readonly and view.nbytes == 4000 and view == array.array("I", range(1000)).tobytes()
        with raises(zerod.Order, "not released yet"):
            client.stash_read(7)
        client.stash_release(7, last=False)
        assert client.stash_read(7)[4] == 1 and bytes(client.stash_read(8)) == b"read-only"
        with raises(zerod.NotHeld, "not read"):
            client.stash_release(9, last=False)
        client.stash_release(7)
        client.stash_release(8)
        with raises(zerod.Order, "has not stashed"):
            client.stash_read(7)
        with raises(zerod.Window, str(1 << 20)):
            client.stash_write(1, bytes((1 << 20) + 1))
        client.stash_write(1, b"x")
        client.step([])
        with raises(zerod.Order, "has not stashed"):
            client.stash_read(1)


@case
def what_a_stash_cannot_be():
    with attached() as (_, client):
        with raises(zerod.Order, "declare one"):
            client.stash_write(1, b"x")
        with raises(ValueError, "contiguous"):
            client.stash_write(1, memoryview(b"abcd")[::2])
        with raises(TypeError, "size"):
            client.stash_write(1, 4096)
        for stash, kind in (("much", TypeError), (0, ValueError), (zerod.Stash(1, [-1]), ValueError),
                            (zerod.Stash(1, where="cuda:0"), ValueError)):
            with raises(kind):
                client.attach(client.layout, stash=stash)
    for stash in (zerod.Stash(4096, [1]), zerod.Stash(4096, [0, 5]), zerod.Stash(4096, entry_bytes=8192)):
        with raises(zerod.Error), attached(stash=stash):
            pass


@case
def a_layout_tells_all_that_it_took():
    """As it was made, and as an observer gets it from the job."""
    layout = zerod.Layout()
    block = layout.group("block", "bf16", ranks=[0], divisor=2.5, optimizer="lion")
    layout.tensor(block, "w", [3, 5], set=7, init="normal", value=0.02, seed=11)
    layout.tensor(block, "still", [], frozen=True, init="constant", value=4)

    def told(handle):
        tensors, library = [], _library.library()
        for t in range(3):
            one = _library.Tensor()
            if library.zero_layout_describe(handle, t, ctypes.byref(one)):
                continue
            tensors.append((one.name, one.shape[:one.ndim], one.frozen, one.set, one.init, one.init_value, one.init_seed))
        return tensors, library.zero_layout_group_optimizer(handle, 0), library.zero_layout_group_divisor(handle, 0)
    expected = ([(b"w", [3, 5], False, 7, 2, 0.02, 11), (b"still", [], True, 0, 1, 4.0, 0)], b"lion", 2.5)
    with layout.handle() as handle:
        assert told(handle) == expected, told(handle)
    with attached("told", layout) as (cluster, _), zerod.connect("told", zerod.OBSERVER, socket=cluster[0].socket) as observer:
        observer.attach()
        with observer.layout.handle() as handle:
            assert told(handle) == expected, told(handle)


@case
def muon_updates_each_matrix_and_adamw_the_rest_of_the_group():
    """A Newton-Schulz that converges makes the nearest orthogonal matrix of each gradient."""
    adamw_, muon = SETS[0], zerod.MuonSet(0.1, weight_decay=0.5, ns_coefficients=(1.5, -0.5, 0), ns_steps=30)
    layout = zerod.Layout()
    block = layout.group("block", "fp32")
    layout.tensor(block, "fused", [4, 2], init="constant", value=1, optimizer="muon", matrices=[2, 2])
    layout.tensor(block, "stack", [2, 1, 2], optimizer="muon")
    layout.tensor(block, "tall", [4, 1], optimizer="muon")
    layout.tensor(block, "bias", [1], set=1)
    gradients = {"fused": (3, 0, 0, 1, 0, -2, 5, 0), "stack": (0, 4, 3, 0), "tall": (0, 0, -2, 0), "bias": (0.5,)}
    assert [layout.optimizer(t) for t in range(4)] == ["muon", "muon", "muon", "adamw"]
    assert [layout.matrices(t) for t in range(4)] == [(2, 2), (1,), (4,), ()]
    with attached(layout=layout) as (_, client):
        address = client.grad(block)
        for name, values in gradients.items():
            ctypes.memmove(address + 4 * layout.offset(layout.find(name)), struct.pack(f"{len(values)}f", *values),
                           4 * len(values))
        client.push(block)
        client.step([muon, adamw_])
        wanted = {"fused": [0.85, 0.95, 0.95, 0.85, 0.95, 1.05, 0.85, 0.95], "stack": [0, -0.1, -0.1, 0],
                  "tall": [0, 0, 0.2, 0], "bias": [adamw(0, [0.5], adamw_)]}
        for name, values in wanted.items():
            for got, want in zip(read(client, layout.find(name)), values, strict=True):
                assert abs(got - want) < 1e-3, f"{name}: {got} is not {want}"
        near(read(client, 0, "momentum_buffer")[6], 0.25)
        with raises(zerod.Invalid, "'bias'", "muon", "its optimizer is adamw"):
            client.step([muon, muon])


@case
def a_step_on_a_gpu():
    """The GPU is the fake one, whose memory this process can read."""
    plugin = os.path.join(os.path.dirname(Tools.actor), "zerod-fake-gpu.so")
    os.environ["ZEROD_CUDA_PLUGIN"] = os.path.abspath(plugin)  # for the daemon and the client
    try:
        with attached(device="cuda:0") as (cluster, client):
            assert cluster[0].job(client.job)["gather"]["place"] == "GPU 0"
            client.put(3, "master", 0, 4, floats(7, 8, 9, 10))
            assert ctypes.string_at(client.fetch(1), 16) == struct.pack("4f", 7, 8, 9, 10)
            client.release(1, stream=0)
            write_gradient(client, 1, 0.5)
            client.push(1, stream=0)
            client.fetch(0)
            assert client.step(SETS, stream=0).version == 1
            assert read_one(client, 3, "step") == 1 and read(client, 3)[0] < 7
        for where, place in (("windows", "GPU 0"), ("host", "host")):
            with attached(device="cuda:0", stash=zerod.Stash(1 << 20, where=where)) as (cluster, client):
                assert cluster[0].job(client.job)["stash"]["place"] == place
                memory = ctypes.create_string_buffer(b"written", 7)
                client.stash_write(1, ctypes.addressof(memory), 7, stream=0)
                address, size = client.stash_view(1)
                assert ctypes.string_at(address, size) == b"written"
                client.stash_release(1, last=where == "host", stream=0)
                if where == "windows":
                    with raises(TypeError, "stash_view"):
                        client.stash_read(1)
    finally:
        del os.environ["ZEROD_CUDA_PLUGIN"]


@case
def held_groups_are_limited():
    with attached(hold_groups=1) as (_, client):
        client.prefetch(1)
        client.fetch(0)
        with raises(zerod.TooManyHeld):
            client.fetch(1)
        client.release(0)
        client.fetch(1)


@case
def calls_out_of_order():
    with attached(push_groups=1) as (_, client):
        with raises(zerod.Order, "zero_grad"):
            client.push(0)
        client.grad(0)
        with raises(zerod.Order, "slots"):
            client.grad(1)
        client.push(0)
        with raises(zerod.Order, "last"):
            client.grad(0)
        with raises(zerod.Order, "attached"):
            client.attach(small_layout())


@case
def calls_before_attach():
    with Cluster(1) as cluster, zerod.connect(socket=cluster[0].socket) as client:
        assert client.layout is None
        for call in (lambda: client.fetch(0), lambda: client.grad(0), client.norm, lambda: client.step(SETS),
                     lambda: client.push(0, present=b"\1"), lambda: read_one(client, 0, "step")):
            with raises(zerod.NotAttached):
                call()


# ---- several ranks -------------------------------------------------------------------

def ranks(cluster, n, layout, **options):
    """n attached clients, all at once."""
    def join(rank):
        client = zerod.connect("job", rank, n, socket=cluster[rank % len(cluster.daemons)].socket,
                               local_world_size=max(1, n // len(cluster.daemons)), **options)
        client.attach(layout)
        return client
    return together(*(lambda r=r: join(r) for r in range(n)))


@case
def gradients_of_two_nodes_are_averaged():
    with Cluster(2) as cluster:
        clients = ranks(cluster, 2, small_layout())
        assert [(c.rank, c.world_size, c.local_world_size, c.job) for c in clients] == \
            [(0, 2, 1, "job"), (1, 2, 1, "job")]
        for client, value in zip(clients, (1, 3)):
            push_all(client, value)
        for result in together(*(lambda c=c: c.step(SETS) for c in clients)):
            near(result.grad_norm, 2 * math.sqrt(24))
        near(read(clients[1], 0, "exp_avg")[0], 0.1 * 2)
        for client in clients:
            client.close()


@case
def missing_rank_is_named():
    with Cluster(1) as cluster, zerod.connect("job", 0, 2, socket=cluster[0].socket, timeout=2) as client:
        with raises(zerod.Deadline, "rank 1"):
            client.attach(small_layout())


@case
def rank_that_does_not_step_is_named():
    with Cluster(1) as cluster:
        a, b = ranks(cluster, 2, small_layout(), timeout=2)
        with raises(zerod.Deadline, "rank 1"):
            a.step(SETS)
        a.close()
        b.close()


@case
def different_hyperparameters_are_refused():
    """The rank that steps second is refused, and may step again with the first rank's."""
    others, told = [SETS[0]._replace(lr=1.0)], []

    def step(client, mine, theirs):
        try:
            return client.step(mine)
        except zerod.Conflict as why:
            told.append(str(why))
            return client.step(theirs)
    with Cluster(1) as cluster:
        a, b = ranks(cluster, 2, small_layout())
        assert [r.version for r in together(lambda: step(a, SETS, others), lambda: step(b, others, SETS))] == [1, 1]
        assert len(told) == 1 and "rank" in told[0], told
        a.close()
        b.close()


@case
def different_layout_is_refused():
    with attached("job") as (cluster, _), zerod.connect("job", socket=cluster[0].socket) as client:
        layout = small_layout()
        layout.tensor(1, "more", [1])
        with raises(zerod.LayoutMismatch, "head"):
            client.attach(layout)


@case
def observer_reads():
    with attached("job") as (cluster, client):
        client.put(1, "master", 0, 5, floats(1, 2, 3, 4, 5))
        with zerod.connect("job", zerod.OBSERVER, socket=cluster[0].socket) as observer:
            observer.attach()
            assert read(observer, observer.layout.find("b")) == [1, 2, 3, 4, 5]
            with raises(zerod.NotPermitted):
                observer.fetch(0)


@case
def queries_are_answered():
    with attached("job") as (_, client):
        assert client.query("status")["jobs"][0]["job"] == "job"
        assert set(client.query("checksum", "job")["planes"]) == {"master", "exp_avg", "exp_avg_sq", "step", "set"}
        with raises(zerod.Invalid, "nonsense"):
            client.query("nonsense")
        with raises(zerod.NoJob, "other"):
            client.query("checksum", "other")


# ---- layouts -------------------------------------------------------------------------

@case
def layout_reads_back_as_it_was_made():
    layout = small_layout("bf16")
    assert (layout.groups, layout.tensors) == (2, 4)
    assert [layout.group_name(g) for g in (0, 1)] == ["block", "head"] and layout.dtype(1) == "bf16"
    assert list(layout.group_tensors(0)) == [0, 1, 2] and list(layout.group_tensors(1)) == [3]
    assert [layout.tensor_name(t) for t in range(4)] == ["w", "b", "frozen", "head"]
    assert [layout.shape(t) for t in range(4)] == [(3, 5), (5,), (7,), (4,)]
    assert [layout.tensor_elements(t) for t in range(4)] == [15, 5, 7, 4]
    assert [layout.offset(t) for t in range(4)] == [0, 128, 256, 0] and layout.group_elements(0) == 384
    assert [layout.frozen(t) for t in range(4)] == [False, False, True, False]
    assert layout.tensor_group(3) == 1 and layout.find("frozen") == 2
    with raises(zerod.NoGroup, "nobody"):
        layout.find("nobody")


@case
def scalars_and_empty_tensors_have_shapes():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    assert layout.shape(layout.tensor(0, "scalar", ())) == () and layout.tensor_elements(0) == 1
    assert layout.shape(layout.tensor(0, "empty", (0, 4))) == (0, 4) and layout.tensor_elements(1) == 0


@case
def service_makes_the_first_values():
    layout = zerod.Layout()
    layout.group("g", "fp32")
    layout.tensor(0, "one", [10], init="constant", value=1.5)
    layout.tensor(0, "normal", [1000], init="normal", value=0.02, seed=3)
    with attached(layout=layout) as (_, client):
        assert read(client, 0) == [1.5] * 10
        normal = read(client, 1)
        assert 0.015 < math.sqrt(sum(x * x for x in normal) / 1000) < 0.025


@case
def layout_of_a_client_is_read_only_and_ends_with_it():
    with attached() as (_, client):
        layout = client.layout
        assert layout.tensor_name(3) == "head"
        with raises(TypeError):
            layout.group("more", "fp32")
        client.close()
        with raises(zerod.Closed):
            layout.tensor_name(3)


@case
def attached_layout_cannot_change():
    layout = small_layout()
    with attached(layout=layout):
        with raises(TypeError, "attach"):
            layout.tensor(1, "more", [1])
        assert layout.tensors == 4


@case
def groups_of_a_subset_of_the_ranks():
    layout = zerod.Layout()
    layout.group("all", "fp32")
    layout.tensor(0, "a", [3])
    layout.group("first", "fp32", ranks=[0], divisor=2.0)
    layout.tensor(1, "b", [3])
    with Cluster(1) as cluster:
        a, b = ranks(cluster, 2, layout)
        with raises(zerod.Rank, "rank 1"):
            b.grad(1)
        a.close()
        b.close()


if __name__ == "__main__":
    main()
