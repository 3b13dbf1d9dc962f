"""Layouts: a model as groups of tensors that are fetched and pushed together."""

import contextlib
import ctypes
import operator
import threading
import weakref
from collections.abc import Sequence

from . import _library as lib
from .errors import NoGroup, error_of


def number(value, name, least, most):
    """Checks a whole number that C can hold, and returns it."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an int, not {type(value).__name__}") from None
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, not from {least} to {most}")
    return value


def real(value, name):
    """Returns a number as C's double."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large") from None


def name_of(value, name):
    """Returns a text as bytes for C."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{name} contains a zero byte")
    return value.encode()


def code_of(table, value, name):
    """Returns the code of a word."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if value not in table:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(table)}")
    return table[value]


class Layout:
    """Ordered groups of tensors; every rank of a job brings the same.

    Layout() is empty; group() and tensor() append to it until it is passed to attach().  Client.layout is the job's
    layout, and can only be read.
    """

    def __init__(self):
        handle = ctypes.c_void_p()
        self._raise(lib.library().zero_layout_new(ctypes.byref(handle)), "out of memory")
        self._own(handle)

    def _own(self, handle):
        self._library = lib.library()
        self._handle, self._lock, self._use = handle.value, threading.RLock(), None
        self._lent = False
        weakref.finalize(self, self._library.zero_layout_free, handle).atexit = False

    @classmethod
    def of_handle(cls, handle):
        """Takes over a C layout."""
        self = cls.__new__(cls)
        self._own(handle)
        return self

    @classmethod
    def of_client(cls, handle, use):
        """Returns the layout of a client, which is valid as long as the client.  use: the client's check of that."""
        self = cls.__new__(cls)
        self._library, self._handle, self._lock, self._use = lib.library(), handle, None, use
        return self

    @contextlib.contextmanager
    def lend(self):
        """Lends the C layout to a call that may take long, and to several clients at once.  From then on nothing may be
        appended."""
        if self._use:
            with self._use() as handle:
                yield handle
            return
        with self._lock:
            self._lent = True
        yield self._handle

    @contextlib.contextmanager
    def handle(self):
        """Lends the C layout to this thread alone."""
        with self._use() if self._use else self._lock:
            yield self._handle

    @staticmethod
    def _raise(status, text):
        if status:
            raise error_of(status, text)

    def _add(self, function, *arguments):
        index = ctypes.c_uint32()
        if self._use:
            raise TypeError("a job's layout cannot be changed")
        with self._lock:
            if self._lent:
                raise TypeError(
                    "attach() was called with this layout: it cannot be changed any more"
                )
            self._change(function, *arguments, ctypes.byref(index))
        return index.value

    def _change(self, function, *arguments):
        with self._lock:
            self._raise(
                function(self._handle, *arguments),
                (self._library.zero_layout_error(self._handle) or b"").decode("utf-8", "replace"),
            )

    def group(
        self,
        name: str,
        dtype: str,
        ranks: Sequence[int] | None = None,
        divisor: float = 0.0,
        optimizer: str = "adamw",
        eager: bool = False,
        ema: bool = False,
        state: str = "fp32",
        master: str = "fp32",
    ) -> int:
        """Appends a group, and returns its index.

        dtype: of parameters "fp32", "bf16" or "fp16"; of frozen parameters that are kept as bytes also "int8", "uint8",
        "fp8-e4m3", "fp8-e5m2" or "bool".
        ranks: those that push gradients of the group; None: all.  The group's gradient is the sum over these ranks,
        divided by divisor; a divisor of 0 stands for their number.
        optimizer: updates the group; the step's sets of its tensors are of that optimizer.
        eager: owners update the group as soon as its gradient is complete, if Client.ahead() has said how the step will
        end.  Its master weights and moments take twice the memory.
        ema: the group also keeps the average of its weights, by the ema_decay of the step's sets.
        state, master: the formats in which owners keep the moments and the master weights (zero_layout_state() in zero.h):
        "fp32", "bf16" or "8bit"; and "fp32", or of a bf16 group "bf16+16" or "bf16+8".  Raises Invalid.
        """
        array, n = None, 0
        if ranks is not None:
            numbers = [number(r, "rank", 0, lib.RANK_MAX - 1) for r in ranks]
            array, n = (ctypes.c_uint32 * len(numbers))(*numbers), len(numbers)
            if n == 0:
                raise ValueError(f"no rank pushes group {name!r}")
        index = self._add(
            self._library.zero_layout_group,
            name_of(name, "name"),
            code_of({**lib.DTYPES, **lib.BYTES}, dtype, "dtype"),
            array,
            n,
            real(divisor, "divisor"),
        )
        self._change(self._library.zero_layout_optimizer, index, name_of(optimizer, "optimizer"))
        if ema:
            self._change(self._library.zero_layout_ema, index)
        if (state, master) != ("fp32", "fp32"):
            self._change(self._library.zero_layout_state, index, name_of(state, "state"), name_of(master, "master"))
        if eager:
            self._change(self._library.zero_layout_eager, index)
        return index

    def tensor(
        self,
        group: int,
        name: str,
        shape: Sequence[int],
        frozen: bool = False,
        set: int = 0,
        *,
        init: str = "put",
        value: float = 0.0,
        seed: int = 0,
        whole: bool = False,
        optimizer: str | None = None,
        matrices: Sequence[int] | None = None,
    ) -> int:
        """Appends a tensor to the last group, and returns its index, which counts through the layout.

        shape: in a group of bytes it counts bytes; everywhere else an element of such a group is a word of four bytes.
        frozen: the tensor is never updated, and has no moments and no gradient.  All tensors of a group of bytes are
        frozen.
        set: the hyperparameter set of Client.step() that applies.
        init: "put" (zeros until put()), "zeros", "constant" (value everywhere) or "normal" (mean 0, standard deviation
        value, by seed).
        whole: one owner has all of the tensor.
        optimizer: updates the tensor; None: its group's.
        matrices: of shape [..., rows, cols] each is a matrix for "muon"; with rows such as [n, n, n] it is that many
        matrices below one another, whose numbers of rows add up to its own.  Raises Invalid, NoGroup.
        """
        extents = [number(n, "extent", 0, 2**64 - 1) for n in shape]
        if len(extents) > lib.DIM_MAX:
            raise ValueError(
                f"tensor {name!r} has {len(extents)} dimensions, more than {lib.DIM_MAX}"
            )
        tensor = lib.Tensor(
            name_of(name, "name"),
            len(extents),
            (ctypes.c_uint64 * len(extents))(*extents),
            bool(frozen),
            number(set, "set", 0, lib.SET_MAX - 1),
            code_of(lib.INITS, init, "init"),
            real(value, "value"),
            number(seed, "seed", 0, 2**64 - 1),
        )
        index = self._add(
            self._library.zero_layout_tensor,
            number(group, "group", 0, lib.ALL),
            ctypes.byref(tensor),
        )
        if whole:
            self._change(self._library.zero_layout_whole, index)
        if optimizer is not None:
            self._change(self._library.zero_layout_tensor_optimizer, index, name_of(optimizer, "optimizer"))
        if matrices is not None:
            rows = [number(n, "rows of a matrix", 0, 2**64 - 1) for n in matrices]
            self._change(self._library.zero_layout_matrices, index, (ctypes.c_uint64 * len(rows))(*rows), len(rows))
        return index

    # ---- reading -------------------------------------------------------------------------

    @property
    def groups(self) -> int:
        """Number of groups."""
        with self.handle() as handle:
            return self._library.zero_layout_groups(handle)

    @property
    def tensors(self) -> int:
        """Number of tensors, in all groups."""
        with self.handle() as handle:
            return self._library.zero_layout_tensors(handle)

    def _of(self, what, index, function, *arguments):
        """Returns a function's value for an index that exists."""
        with self.handle() as handle:
            n = (
                self._library.zero_layout_groups(handle)
                if what == "group"
                else self._library.zero_layout_tensors(handle)
            )
            if not 0 <= operator.index(index) < n:
                raise NoGroup(f"no {what} {index}: the layout has {n}")
            return function(handle, operator.index(index), *arguments)

    def group_name(self, group: int) -> str:
        return self._of("group", group, self._library.zero_layout_group_name).decode()

    def dtype(self, group: int) -> str:
        code = self._of("group", group, self._library.zero_layout_group_dtype)
        return next(name for name, known in {**lib.DTYPES, **lib.BYTES}.items() if known == code)

    def formats(self, group: int) -> tuple[str, str]:
        """Returns the formats of a group's moments and of its master weights."""
        master = ctypes.c_char_p()
        state = self._of("group", group, self._library.zero_layout_group_state, ctypes.byref(master))
        return state.decode(), master.value.decode()

    def group_elements(self, group: int) -> int:
        """Returns the number of elements of a group's flat array, alignment gaps included."""
        return self._of("group", group, self._library.zero_layout_group_elements)

    def group_tensors(self, group: int) -> range:
        """Returns the indices of a group's tensors."""
        first = ctypes.c_uint32()
        n = self._of("group", group, self._library.zero_layout_group_tensors, ctypes.byref(first))
        return range(first.value, first.value + n)

    def group_ranks(self, group: int) -> list[int] | None:
        """Returns the ranks that push a group, ascending; None stands for all."""
        ranks = ctypes.POINTER(ctypes.c_uint32)()
        n = self._of("group", group, self._library.zero_layout_group_ranks, ctypes.byref(ranks))
        return ranks[:n] if n else None

    def tensor_name(self, tensor: int) -> str:
        return self._of("tensor", tensor, self._library.zero_layout_tensor_name).decode()

    def tensor_group(self, tensor: int) -> int:
        return self._of("tensor", tensor, self._library.zero_layout_tensor_group)

    def tensor_elements(self, tensor: int) -> int:
        return self._of("tensor", tensor, self._library.zero_layout_tensor_elements)

    def shape(self, tensor: int) -> tuple[int, ...]:
        extents = ctypes.POINTER(ctypes.c_uint64)()
        n = self._of(
            "tensor", tensor, self._library.zero_layout_tensor_shape, ctypes.byref(extents)
        )
        return tuple(extents[:n]) if n else ()

    def optimizer(self, tensor: int) -> str:
        return self._of("tensor", tensor, self._library.zero_layout_optimizer_of).decode()

    def matrices(self, tensor: int) -> tuple[int, ...]:
        """Returns the rows of the matrices that lie below one another in a tensor; () if no optimizer updates it matrix
        by matrix."""
        rows = ctypes.POINTER(ctypes.c_uint64)()
        n = self._of("tensor", tensor, self._library.zero_layout_tensor_rows, ctypes.byref(rows))
        return tuple(rows[:n]) if n else ()

    def frozen(self, tensor: int) -> bool:
        return self._of("tensor", tensor, self._library.zero_layout_tensor_frozen)

    def offset(self, tensor: int) -> int:
        """Returns the offset of a tensor in its group's flat array, in elements; a multiple of 128."""
        return self._of("tensor", tensor, self._library.zero_layout_offset)

    def find(self, name: str) -> int:
        """Finds a tensor by name, in time linear in the number of tensors.  Raises NoGroup if there is none."""
        index, encoded = ctypes.c_uint32(), name_of(name, "name")
        with self.handle() as handle:
            self._raise(
                self._library.zero_layout_find(handle, encoded, ctypes.byref(index)),
                f"the layout has no tensor named {name!r}",
            )
        return index.value
