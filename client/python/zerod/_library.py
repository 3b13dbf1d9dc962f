"""libzero through ctypes: its place, and its functions, structs and enums.

Rule: everything here mirrors zero.h and zero_types.h.  No other module of the package knows a number or a struct of
theirs.  Calls release Python's global lock.
"""

import ctypes
import ctypes.util
import functools
import os
import shutil
import subprocess
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

from .sets import HYPERPARAMETERS

SONAME = "libzero.so.0"

ALL = 0xFFFFFFFF
AUTO = ALL - 1
OBSERVER = -1
NAME_MAX = 255
JOB_MAX = 200
DIM_MAX = 8
SET_MAX = 256
RANK_MAX = 4096
BLOB_MAX = 8192
FILE_MAX = 1024

DTYPES = {"fp32": 1, "bf16": 2, "fp16": 3}
BYTES = {"int8": 4, "uint8": 5, "fp8-e4m3": 6, "fp8-e5m2": 7, "bool": 8}  # kept in words of four
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, **dict.fromkeys(BYTES, 4)}
PLANES = {"master": 1, "moment1": 2, "moment2": 3, "moment3": 4, "serve": 5, "grad": 6, "step": 7, "set": 8, "ema": 9,
          "exp_avg": 2, "momentum_buffer": 2, "exp_avg_sq": 3}
INITS = {"zeros": 0, "constant": 1, "normal": 2, "put": 3}
ON_LOST = {"wait": 0, "fail": 1}
ACCUMULATES = {"fp32": 0, "wire": 1}
VALUES_MAX = 64
REDUCTIONS = {"sum": 0, "max": 1, "min": 2}
ADJUST_LR = {"original": 0, "match_rms_adamw": 1, "spectral_unclamped": 2}
STASH_WHERE = {"windows": 0, "host": 1}


TELL = CFUNCTYPE(None, c_void_p, c_char_p)


class Tensor(Structure):
    """struct zero_tensor"""

    _fields_ = [
        ("name", c_char_p),
        ("ndim", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("frozen", c_bool),
        ("set", c_uint32),
        ("init", c_int),
        ("init_value", c_double),
        ("init_seed", c_uint64),
    ]


class File(Structure):
    """struct zero_file"""

    _fields_ = [("data", c_void_p), ("bytes", c_uint64)]


class Copy(Structure):
    """struct zero_gpu_base"""

    _fields_ = [("data", c_void_p), ("bytes", c_uint64), ("unmap", CFUNCTYPE(None, c_void_p))]


class Values(Structure):
    """struct zero_values"""

    _fields_ = [
        ("tensor", c_uint32),
        ("plane", c_int),
        ("dtype", c_int),
        ("first", c_uint64),
        ("count", c_uint64),
        ("at", c_uint64),
    ]


class Options(Structure):
    """struct zero_options"""

    _fields_ = [
        ("socket", c_char_p),
        ("job", c_char_p),
        ("rank", c_int32),
        ("world_size", c_uint32),
        ("local_world_size", c_uint32),
        ("timeout_ms", c_uint32),
        ("incarnation", c_uint32),
    ]


class Stash(Structure):
    """struct zero_stash"""

    _fields_ = [
        ("ranks", POINTER(c_uint32)),
        ("n_ranks", c_uint32),
        ("bytes", c_uint64),
        ("entry_bytes", c_uint64),
        ("where", c_int),
        ("unchecked", c_bool),
    ]


class Needs(Structure):
    """struct zero_needs"""

    _fields_ = [
        ("hold_groups", c_uint32),
        ("push_groups", c_uint32),
        ("grad_dtype", c_int),
        ("reduce_dtype", c_int),
        ("accumulate", c_int),
        ("private_views", c_bool),
        ("on_lost_rank", c_int),
        ("device", c_char_p),
        ("stash", POINTER(Stash)),
    ]


class NewtonSchulz(Structure):
    """struct zero_newton_schulz"""

    _fields_ = [("a", c_double), ("b", c_double), ("c", c_double), ("eps", c_double), ("steps", c_double)]


class Muon(Structure):
    """struct zero_muon"""

    _fields_ = [
        ("lr", c_double),
        ("momentum", c_double),
        ("weight_decay", c_double),
        ("nesterov", c_double),
        ("adjust_lr", c_double),
        ("ns", POINTER(NewtonSchulz)),
    ]


class SetValues(Union):
    """The union of struct zero_set.  values: of any optimizer but Muon."""

    _fields_ = [
        ("values", c_double * max(len(v) for name, v in HYPERPARAMETERS.items() if name != "muon")),
        ("muon", Muon),
    ]


class Set(Structure):
    """struct zero_set"""

    _anonymous_ = ("of",)
    _fields_ = [("optimizer", c_char_p), ("of", SetValues), ("ema_decay", c_double)]


class Sync(Structure):
    """struct zero_sync"""

    _fields_ = [("stream", c_void_p)]


class Weights(Structure):
    """struct zero_weights"""

    _fields_ = [("version", c_uint64), ("data", c_void_p), ("bytes", c_uint64), ("copy", c_uint32)]


class Form(Structure):
    """struct zero_form"""

    _fields_ = [("group", c_uint32), ("dtype", c_int)]


class Step(Structure):
    """struct zero_step_options"""

    _fields_ = [
        ("sets", POINTER(Set)),
        ("n_sets", c_uint32),
        ("clip_norm", c_double),
        ("loss_scale", c_double),
        ("growth_interval", c_uint32),
        ("blob", c_void_p),
        ("blob_bytes", c_size_t),
        ("sync", POINTER(Sync)),
    ]


class Result(Structure):
    """struct zero_result"""

    _fields_ = [
        ("version", c_uint64),
        ("skipped", c_bool),
        ("skips", c_uint32),
        ("grad_norm", c_double),
        ("loss_scale", c_double),
    ]


_client = _layout = c_void_p
PROTOTYPES = {
    "zero_accepted": (c_uint32, _client, c_uint32),
    "zero_attach": (c_int, _client, _layout, POINTER(Needs)),
    "zero_base": (c_int, _client, POINTER(c_char_p), c_uint32, POINTER(File)),
    "zero_base_copy": (c_int, _client, c_char_p, POINTER(Copy)),
    "zero_blob": (c_void_p, _client, POINTER(c_size_t)),
    "zero_client_layout": (_layout, _client),
    "zero_close": (None, _client),
    "zero_close_at_exit": (None, _client),
    "zero_compose": (c_int, _client, _layout, c_uint32, POINTER(_layout)),
    "zero_connect": (c_int, POINTER(Options), POINTER(c_void_p)),
    "zero_dtype_is_bytes": (c_bool, c_int),
    "zero_dtype_size": (c_size_t, c_int),
    "zero_error": (c_char_p, _client),
    "zero_fd": (c_int, _client),
    "zero_fetch": (c_int, _client, c_uint32, POINTER(c_void_p)),
    "zero_finish": (c_int, _client, c_bool),
    "zero_first_values": (c_int, _client, POINTER(c_void_p)),
    "zero_follow": (c_int, _client, c_uint64, c_uint64, c_uint32, POINTER(Weights)),
    "zero_follow_form": (c_int, _client, POINTER(Form), c_uint32),
    "zero_free": (None, c_void_p),
    "zero_get": (c_int, _client, c_uint32, c_int, c_uint64, c_uint64, c_void_p),
    "zero_grad": (c_int, _client, c_uint32, POINTER(c_void_p)),
    "zero_interrupt": (None, _client),
    "zero_layout_describe": (c_int, _layout, c_uint32, POINTER(Tensor)),
    "zero_layout_error": (c_char_p, _layout),
    "zero_layout_find": (c_int, _layout, c_char_p, POINTER(c_uint32)),
    "zero_layout_free": (None, _layout),
    "zero_layout_group": (
        c_int,
        _layout,
        c_char_p,
        c_int,
        POINTER(c_uint32),
        c_uint32,
        c_double,
        POINTER(c_uint32),
    ),
    "zero_layout_group_divisor": (c_double, _layout, c_uint32),
    "zero_layout_group_dtype": (c_int, _layout, c_uint32),
    "zero_layout_group_eager": (c_bool, _layout, c_uint32),
    "zero_layout_group_ema": (c_bool, _layout, c_uint32),
    "zero_layout_group_elements": (c_uint64, _layout, c_uint32),
    "zero_layout_group_name": (c_char_p, _layout, c_uint32),
    "zero_layout_group_optimizer": (c_char_p, _layout, c_uint32),
    "zero_layout_group_ranks": (c_uint32, _layout, c_uint32, POINTER(POINTER(c_uint32))),
    "zero_layout_group_state": (c_char_p, _layout, c_uint32, POINTER(c_char_p)),
    "zero_layout_group_tensors": (c_uint32, _layout, c_uint32, POINTER(c_uint32)),
    "zero_layout_groups": (c_uint32, _layout),
    "zero_layout_matrices": (c_int, _layout, c_uint32, POINTER(c_uint64), c_uint32),
    "zero_layout_new": (c_int, POINTER(c_void_p)),
    "zero_layout_offset": (c_uint64, _layout, c_uint32),
    "zero_layout_optimizer": (c_int, _layout, c_uint32, c_char_p),
    "zero_layout_optimizer_of": (c_char_p, _layout, c_uint32),
    "zero_layout_state": (c_int, _layout, c_uint32, c_char_p, c_char_p),
    "zero_layout_tensor": (c_int, _layout, c_uint32, POINTER(Tensor), POINTER(c_uint32)),
    "zero_layout_tensor_elements": (c_uint64, _layout, c_uint32),
    "zero_layout_tensor_frozen": (c_bool, _layout, c_uint32),
    "zero_layout_tensor_group": (c_uint32, _layout, c_uint32),
    "zero_layout_tensor_name": (c_char_p, _layout, c_uint32),
    "zero_layout_tensor_rows": (c_uint32, _layout, c_uint32, POINTER(POINTER(c_uint64))),
    "zero_layout_tensor_shape": (c_uint32, _layout, c_uint32, POINTER(POINTER(c_uint64))),
    "zero_layout_tensor_optimizer": (c_int, _layout, c_uint32, c_char_p),
    "zero_layout_tensors": (c_uint32, _layout),
    "zero_library_version": (c_uint32,),
    "zero_loss_scale": (c_double, _client),
    "zero_layout_eager": (c_int, _layout, c_uint32),
    "zero_layout_ema": (c_int, _layout, c_uint32),
    "zero_layout_whole": (c_int, _layout, c_uint32),
    "zero_layout_partition": (c_int, _layout, c_uint32, c_int, POINTER(c_uint64), POINTER(c_uint64)),
    "zero_all_reduce": (c_int, _client, c_char_p, c_int, c_uint32, POINTER(c_double), POINTER(c_double)),
    "zero_ahead": (c_int, _client, POINTER(Step)),
    "zero_norm": (c_int, _client, POINTER(c_double), POINTER(c_bool)),
    "zero_tensor_norms": (c_int, _client, c_int, c_uint32, c_uint32, POINTER(c_double)),
    "zero_on_wait": (None, _client, TELL, c_void_p),
    "zero_prefetch": (c_int, _client, c_uint32),
    "zero_push": (c_int, _client, c_uint32, c_char_p, c_bool, POINTER(Sync)),
    "zero_put": (c_int, _client, c_uint32, c_int, c_uint64, c_uint64, c_void_p),
    "zero_put_file": (c_int, _client, c_int, POINTER(Values), c_uint32),
    "zero_query": (c_int, _client, c_char_p, c_char_p, POINTER(c_void_p)),
    "zero_release": (c_int, _client, c_uint32, POINTER(Sync)),
    "zero_stash_read": (c_int, _client, c_uint64, POINTER(c_void_p), POINTER(c_uint64)),
    "zero_stash_release": (c_int, _client, c_uint64, c_bool, POINTER(Sync)),
    "zero_stash_write": (c_int, _client, c_uint64, c_void_p, c_uint64, POINTER(Sync)),
    "zero_status_name": (c_char_p, c_int),
    "zero_status_text": (c_char_p, c_int),
    "zero_step": (c_int, _client, POINTER(Step), POINTER(Result)),
    "zero_steps": (c_uint64, _client),
    "zero_unfollow": (c_int, _client, POINTER(Weights)),
    "zero_weights_group": (c_void_p, _client, POINTER(Weights), c_uint32),
}


# ---- where the library is ------------------------------------------------------------------


def _pkg_config():
    """Returns the library's directory by pkg-config, or None."""
    tool = shutil.which("pkg-config")
    if not tool:
        return None
    answer = subprocess.run(
        [tool, "--variable=libdir", "zero"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return answer.stdout.strip() if answer.returncode == 0 else None


def _places():
    """Yields pairs (name of the place, path or None).  Later ones cost more."""
    here = Path(__file__).resolve().parent
    yield "beside the package", here / SONAME
    if here.parent.name == "python" and here.parent.parent.name == "client":
        yield "build tree of the checkout", here.parents[2] / "build" / "client" / "lib" / SONAME
    directory = _pkg_config()
    yield "pkg-config zero", Path(directory) / SONAME if directory else None
    yield "the system's libraries", ctypes.util.find_library("zero")


def _load(path):
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise OSError(f"has no {name}(): it is not the libzero of this package") from None
        function.restype, function.argtypes = result, arguments
    return library


def _find():
    chosen = os.environ.get("ZEROD_LIBRARY")
    if chosen:
        try:
            return _load(chosen)
        except OSError as why:
            raise ImportError(f"cannot load libzero from $ZEROD_LIBRARY, {chosen}: {why}") from None
    tried = []
    for where, place in _places():
        if place is None or isinstance(place, Path) and not place.exists():
            tried.append(f"{where} ({place or 'not known there'})")
            continue
        try:
            return _load(place)
        except OSError as why:
            tried.append(f"{where} ({place}: {why})")
    raise ImportError(
        "cannot find libzero; set $ZEROD_LIBRARY to the path of "
        + SONAME
        + ". Tried: "
        + "; ".join(tried)
    )


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns libzero, which the first call loads.  ImportError names all places that it tried."""
    return _find()
