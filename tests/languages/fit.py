"""Fits w to 0, 1/N, 2/N, ... as one of the ranks that the environment names: Python, by ctypes and no package."""
import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

N, STEPS, FP32 = 1000, 300, 1
zero = ctypes.CDLL(sys.argv[1])
zero.zero_error.restype, zero.zero_steps.restype = c_char_p, c_uint64
client, layout = c_void_p(), c_void_p()


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("ndim", c_uint32), ("shape", POINTER(c_uint64)), ("frozen", c_bool), ("set", c_uint32),
                ("init", c_int), ("init_value", c_double), ("init_seed", c_uint64)]


class Options(Structure):
    _fields_ = [("socket", c_char_p), ("job", c_char_p), ("rank", c_int32), ("world_size", c_uint32),
                ("local_world_size", c_uint32), ("timeout_ms", c_uint32), ("incarnation", c_uint32)]


class Set(Structure):
    _fields_ = [("optimizer", c_char_p), ("values", c_double * 7)]


class Step(Structure):
    _fields_ = [("sets", POINTER(Set)), ("n_sets", c_uint32), ("clip_norm", c_double), ("loss_scale", c_double),
                ("growth_interval", c_uint32), ("blob", c_void_p), ("blob_bytes", c_size_t), ("sync", c_void_p)]


def ok(status):
    if status:
        sys.exit(f"{status}: {zero.zero_error(client).decode()}")


def main():
    group, tensor, view, grad = c_uint32(), c_uint32(), c_void_p(), c_void_p()
    first = (c_float * N)(*[0.25] * N)
    adamw = Set(b"adamw", (c_double * 7)(0.01, 0.9, 0.999, 1e-8, 0.01))
    ok(zero.zero_layout_new(byref(layout)))
    ok(zero.zero_layout_group(layout, b"all", FP32, None, 0, c_double(0), byref(group)))
    ok(zero.zero_layout_tensor(layout, group, byref(Tensor(b"w", 1, (c_uint64 * 1)(N))), byref(tensor)))
    ok(zero.zero_connect(byref(Options()), byref(client)))
    ok(zero.zero_attach(client, layout, None))
    ok(zero.zero_first_values(client, byref(ctypes.cast(first, c_void_p))))
    while True:
        made = zero.zero_steps(client)
        ok(zero.zero_fetch(client, group, byref(view)))
        ok(zero.zero_grad(client, group, byref(grad)))
        w, g = (ctypes.cast(p, POINTER(c_float)) for p in (view, grad))
        for i in range(N):
            g[i] = w[i] - i / N
        if made in (0, STEPS):
            print(f"step {made} loss {sum(d * d / 2 for d in g[:N]):.6f}")
        if made >= STEPS:
            break
        ok(zero.zero_push(client, group, None, c_bool(True), None))
        ok(zero.zero_step(client, byref(Step(ctypes.pointer(adamw), 1)), None))
    zero.zero_layout_free(layout)
    zero.zero_close(client)


main()
