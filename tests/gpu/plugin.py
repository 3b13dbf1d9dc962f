"""The plugin's table in Python, as cuda/zero_cuda.h and what it includes declare it; needs no PyTorch.

plugin_mirror.py holds it against the C compiler, and runs a step by it where there is no GPU.
"""
import ctypes
from ctypes import POINTER, c_float, c_int, c_size_t, c_uint32, c_void_p

ABI = 12
FP32, BF16 = 1, 2
ADAMW = 0  # of enum update_rule
PLANES, SOURCES = 4, 3
FUNCTIONS = [
    "device_count", "device_info", "use", "alloc", "free", "memory", "share_new", "share_free", "pinned_new", "pinned_free",
    "gpu_of", "event_open", "event_done", "event_free", "stream_new", "stream_wait", "stream_free", "update", "cast", "sum",
    "reduce", "product", "divide", "pack", "unpack", "zero", "copy", "copy_peer", "nccl_open", "nccl_error", "comm_new",
    "comm_free", "comm_abort", "broadcast", "exchange", "comm_done", "attribute"]


class Adam(ctypes.Structure):
    _fields_ = [(name, c_float) for name in (
        "decay", "one_minus_beta1", "beta2", "one_minus_beta2", "step_size", "sqrt_bias2", "eps")]


class Scalars(ctypes.Structure):
    """In C, adam is the largest member of a union."""
    _fields_ = [("grad_scale", c_float), ("ema_rate", c_float), ("adam", Adam)]


class Piece(ctypes.Structure):
    """`in` is a word of Python's: getattr()."""
    _fields_ = [("rule", c_int), ("scalars", Scalars), ("n", c_size_t), ("in", c_void_p * PLANES), ("grad", c_void_p * SOURCES),
                ("k", c_uint32), ("from", c_int), ("wire", c_int), ("out", c_void_p * PLANES), ("serve", c_void_p),
                ("serve_dtype", c_int), ("format", c_int * PLANES), ("dither", c_uint32 * PLANES), ("skip", c_uint32)]


# those that are called by Python; the rest is only counted
CALLED = {
    "use": (c_int, c_int),
    "pinned_new": (c_int, c_size_t, POINTER(c_void_p)),
    "stream_new": (c_int, POINTER(c_void_p)),
    "stream_wait": (c_int, c_void_p),
    "update": (c_int, POINTER(Piece), c_size_t, c_void_p),
}


class Table(ctypes.Structure):
    _fields_ = [("abi_version", c_uint32),
                *((name, ctypes.CFUNCTYPE(*CALLED[name]) if name in CALLED else c_void_p) for name in FUNCTIONS)]

    def new_stream(self):
        stream = c_void_p()
        assert self.use(0) == 0 and self.stream_new(stream) == 0
        return stream.value

    def new_pinned(self, size):
        """The address of so many bytes."""
        memory = c_void_p()
        assert self.pinned_new(size, memory) == 0
        return memory.value


def load(path):
    library = ctypes.CDLL(path)
    library.zero_cuda_plugin.restype = POINTER(Table)
    table = library.zero_cuda_plugin().contents
    assert table.abi_version == ABI, f"the plugin has version {table.abi_version}, this script knows {ABI}"
    return table


class AdamW:
    """Steps of tensors in fp32, in place: (elements, addresses of p, m and v, of the gradient, of a copy in bf16 or
    None) each."""

    def __init__(self, table, tensors, lr, betas, eps, weight_decay):
        self.table, self.lr, self.betas, self.eps, self.weight_decay, self.steps = table, lr, betas, eps, weight_decay, 0
        self.pieces = (Piece * len(tensors))(*(Piece(**{
            "rule": ADAMW, "n": n, "in": (*planes,), "grad": (grad,), "k": 1, "from": FP32, "wire": FP32, "out": (*planes,),
            "serve": serve, "serve_dtype": BF16}) for n, planes, grad, serve in tensors))

    def step(self, stream):
        self.steps += 1
        beta1, beta2 = self.betas
        adam = Adam(1 - self.lr * self.weight_decay, 1 - beta1, beta2, 1 - beta2, self.lr / (1 - beta1 ** self.steps),
                    (1 - beta2 ** self.steps) ** 0.5, self.eps)
        for piece in self.pieces:
            piece.scalars = Scalars(1, 0, adam)
        status = self.table.update(self.pieces, len(self.pieces), stream)
        assert status == 0, f"update: {status}"
