"""A client of zerod: one conversation with the node's daemon, one rank of a job.

Rule: every number is checked before it becomes a C number, so a wrong argument raises an exception
and never crashes.  The caller vouches for addresses, because no check here can see where memory ends.
"""

import atexit
import contextlib
import ctypes
import json
import math
import numbers
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _library as lib
from . import environment
from ._conversation import Conversation
from .errors import Aborted, Closed, Error, NoGroup, NotAttached, OutOfRange, error_of
from .layout import Layout, code_of, name_of, number, real
from .sets import HYPERPARAMETERS, AdamSet, AdamWSet, LionSet, MuonSet, SGDSet  # pylint: disable=unused-import  # pickles name them here

LOST_S = 60.0  # the timeout for a lost daemon, if connect() was given none


class FileValues(NamedTuple):
    """A run of values in a file, for Client.put_file(): `count` elements of a tensor's plane from element `first` on.
    They are little-endian, and begin at byte `at` of the file.  dtype: in the file, "fp32", "bf16" or "fp16".  For a
    group of bytes dtype is the group's own, and elements are words of four bytes."""

    tensor: int
    plane: str
    dtype: str
    first: int
    count: int
    at: int


class Stash(NamedTuple):
    """A rank's stash (:meth:`Client.stash_write`), declared alike on all ranks of the set.

    bytes: of all entries at once, each counted whole.  An entry takes whole units of 4096 bytes, or of bytes / 32768 if
    that is more.  ranks: the set, which keeps each byte once; None: this rank alone.  No rank is in two sets.
    entry_bytes: of the largest entry; 0: bytes.  If ranks of the set are on several nodes, each node keeps room for two
    whole entries more.  unchecked: by default the ranks of a set compare their bytes in the first step; True: they do
    not.  where: "windows", where attach()'s device has its windows, or "host".  The ranks of a set on one node name the
    same place, so ranks on several GPUs say "host".
    """

    bytes: int
    ranks: Sequence[int] | None = None
    entry_bytes: int = 0
    unchecked: bool = False
    where: str = "windows"


class StepResult(NamedTuple):
    """The outcome of a step."""

    version: int  # after the step
    skipped: bool  # a gradient was not finite, or sets is empty: nothing was updated
    grad_norm: float  # of the mean gradient, before clipping, loss scale taken out
    loss_scale: float  # to use next
    skips: int = 0  # steps in a row, this one included, skipped because a gradient was not finite


class Client(Conversation):
    """A connection to the node's daemon; zerod.connect() makes it.

    Several threads may use it; calls wait for one another.  All calls raise zerod.Error.  A blocking call takes at most
    the timeout of connect(), plus two seconds for the daemon to say what the call waits for.  Then it raises Deadline.
    Ctrl-C ends some calls at once, and the connection with them: base(), base_copy(), compose(), attach(), norm(),
    norms(), all_reduce(), step() and query().  In the other calls it waits for the reply.

    A client outlives its daemon: a rank connects and attaches again by itself.  The call that finds the daemon gone or
    back does so, and then goes on as if nothing had happened, or raises Aborted.  After Aborted repeat the step from
    its first fetch, at `version`, which is one higher if the step was committed after all.
    """

    def __init__(self, handle, job, place, socket, timeout, own_job, named):
        super().__init__(handle)
        self._job, self._place, self._socket, self._timeout = job, place, socket, timeout
        self._observer = None  # the connection of observe()
        self._own_job = own_job  # close() drops the job
        self._named = named  # False: nobody chose the job's name
        self._layout, self._may_have_job, self._stash_on_gpu = None, False, False
        self._base = None  # the memory, which the library gives to a new daemon
        self._copy = None  # the base's copy on a GPU
        self._tell = None  # kept alive, because the library calls it

    def on_wait(self, tell: Callable[[str], object] | None) -> None:
        """Names a function that is called when a call has waited for 10 s, and again each minute.  tell(text) runs in
        the thread of the call or in another one, and must not use the client.  The text says for whom the call waits.
        By default the text goes to standard error; with None it goes nowhere."""
        heard = lib.TELL(lambda _, text: tell(text.decode("utf-8", "replace"))) if tell else lib.TELL()
        with self._use() as handle:
            self._library.zero_on_wait(handle, heard, None)
            self._tell = heard

    # ---- properties --------------------------------------------------------------------

    @property
    def job(self) -> str | None:
        return self._job

    @property
    def socket(self) -> str | None:
        """The daemon's socket that connect() was given; None: the default place."""
        return self._socket

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def local_world_size(self) -> int:
        """Ranks of the job on this node."""
        return self._place.local_world_size

    @property
    def version(self) -> int:
        """Number of committed steps."""
        with self._use() as handle:
            return self._library.zero_steps(handle)

    @property
    def loss_scale(self) -> float:
        """The loss scale that the next step should use."""
        with self._use() as handle:
            return self._library.zero_loss_scale(handle)

    @property
    def blob(self) -> bytes:
        """The bytes that this rank, or its predecessor, kept with the last decided step, or b""."""
        size = ctypes.c_size_t()
        with self._use() as handle:
            found = self._library.zero_blob(handle, ctypes.byref(size))
            return ctypes.string_at(found, size.value) if size.value else b""

    def accepted(self, group: int) -> int:
        """Returns the number of micro-batches of a group that the service has accepted from this rank in the current
        step.  A rank that takes the place of a dead rank begins with the dead rank's micro-batches.  To push them
        again changes nothing."""
        group = self._group(group)
        if not group < self._attached().groups:
            raise NoGroup(f"no group {group}: the layout has {self._layout.groups}")
        with self._use() as handle:
            return self._library.zero_accepted(handle, group)

    @property
    def layout(self) -> Layout | None:
        """The job's layout, to read; None before attach()."""
        return self._layout

    @property
    def closed(self) -> bool:
        return self._handle is None

    def fileno(self) -> int:
        """Returns a descriptor that polls readable when a reply has come.  The library reads the reply."""
        with self._use() as handle:
            return self._library.zero_fd(handle)

    # ---- frozen weights --------------------------------------------------------------------

    def base(self, files: Sequence[str | os.PathLike]) -> list[memoryview]:
        """Maps files of frozen weights, before attach(), once for a client.  The node has one copy for all processes
        of the user that name files of the same contents.  The job's layout then names the base by its contents.  All
        ranks of the job name the same base, also those that go on with the job later.

        Returns the contents of each file.  They are read-only: a write ends the process.  The memory stays while a
        view of it is used, whatever happens to the daemon or to the files.

        Raises Conflict if a file changes while it is read, Quota, NoSharedMemory, Order, and Deadline with the
        process that brings the base in.
        """
        if isinstance(files, (str, bytes, os.PathLike)):
            raise TypeError("files is a list of paths: write base([path])")
        paths = [os.fsencode(f) for f in files]
        if not 0 < len(paths) <= lib.FILE_MAX:
            raise ValueError(f"a base has 1 to {lib.FILE_MAX} files, not {len(paths)}")
        found = (lib.File * len(paths))()
        self._wait(self._library.zero_base, (ctypes.c_char_p * len(paths))(*paths), len(paths), found)
        first = found[0].data
        self._base = (ctypes.c_char * (found[-1].data + found[-1].bytes - first)).from_address(first)
        weakref.finalize(self._base, _unmap, first, len(self._base)).atexit = False
        whole = memoryview(self._base).cast("B")
        return [whole[f.data - first : f.data - first + f.bytes] for f in found]

    def base_copy(self, device: str) -> "BaseCopy":
        """Maps the base on a GPU of this process, "cuda:N", once, after base() and before attach().  All processes of
        the user that map it there share one copy.

        The memory stays while the result is used.  The GPU ends all work of this process if a kernel writes to it.
        Some drivers map all memory writable; then the write changes what the other processes read.  The call that
        finds a daemon that was started again waits for the GPU, and other threads enqueue no work meanwhile.

        Raises Gpu if the daemon does not use the GPU, or its driver exports no descriptors.  Raises ProtocolVersion
        if the daemon is of a release without such copies.  Raises Quota (gpu_windows), NoMemory, Order.
        """
        copy = lib.Copy()
        self._wait(self._library.zero_base_copy, device.encode(), copy)
        self._copy = BaseCopy(copy, ctypes.addressof(self._base))
        return self._copy

    # ---- joining a job ---------------------------------------------------------------------

    def compose(self, part: Layout, stage: int = 0) -> Layout:
        """Puts together the layout of a job whose ranks work on different groups, such as the stages of a pipeline.
        Waits until all ranks have called.  All ranks then attach() with the returned layout.

        part: the groups that this rank works on, which list no ranks.  The ranks of a group are those that bring it,
        and they all bring it alike.  stage: of the pipeline.  Groups are in the order of their first stage, then of
        their first rank, then of that rank's part.  A rank that returns brings the part that it brought before.

        Raises LayoutMismatch, which names the ranks and the difference, and Deadline with a rank that is missing.
        Raises Rank if another process of the rank calls, or ranks have another world size.
        """
        if not isinstance(part, Layout):
            raise TypeError(f"part is a zerod.Layout, not {type(part).__name__}")
        whole = ctypes.c_void_p()
        with part.lend() as borrowed:
            self._wait(
                self._library.zero_compose,
                borrowed,
                number(stage, "stage", 0, 2**32 - 1),
                ctypes.byref(whole),
            )
        return Layout.of_handle(whole)

    def attach(
        self,
        layout: Layout | None = None,
        hold_groups: int = 1,
        push_groups: int = 1,
        grad_dtype: str = "fp32",
        reduce_dtype: str = "fp32",
        private_views: bool = False,
        on_lost_rank: str = "wait",
        device: str | None = None,
        stash: Stash | int | None = None,
        accumulate: str = "fp32",
    ) -> None:
        """Joins the job as this client's rank, and creates the job if it is new.  Waits until all ranks have
        attached.  The layout is copied.  An observer (rank zerod.OBSERVER) passes nothing.

        hold_groups: most groups fetched and not released at once; zerod.ALL for all.  push_groups: most gradients in
        flight at once; zerod.ALL for all.  With zerod.AUTO the service chooses 2 in host memory, and 2 or all on a GPU.
        grad_dtype: of the gradients that the trainer writes to grad() memory.  reduce_dtype: of gradients between
        nodes, "fp32", "bf16" or "fp16", the same on all ranks.  A sum beyond fp16's range (65504) counts as not finite,
        and the step is skipped.  accumulate: dtype of owners' sums of gradients, "fp32", or "wire" for reduce_dtype, the
        same on all ranks: enum zero_accumulate in zero.h says what "wire" saves and costs.
        private_views: a group always has the same address, and a write there changes this process's copy only, until
        the release.  on_lost_rank: says what happens to a step when a rank ends without close().  "wait": the step
        waits for the rank's successor, for as long as the timeout, and Deadline names the rank.  "fail": calls raise
        LostRank at once, in the whole job if any rank says so.
        device: of parameters and gradients; None: host memory.  "cuda:N": this process's N-th GPU; fetch() and grad()
        return addresses there, and private_views are not possible.
        stash: room for activation checkpoints, a :class:`Stash` or its bytes, which attach() reserves; None: no stash.

        Raises LayoutMismatch with the first difference, Window with the size needed, and Deadline with the missing
        ranks.  Raises Rank and Quota, and Gpu if the device cannot be used.  Raises Conflict if other ranks of the job
        on this node have another grad_dtype, or other ranks of the set declare another stash.
        """
        self._may_have_job = True
        if layout is None:
            self._wait(self._library.zero_attach, None, None)
        else:
            if not isinstance(layout, Layout):
                raise TypeError(f"layout is a zerod.Layout, not {type(layout).__name__}")
            needs = lib.Needs(
                number(hold_groups, "hold_groups", 0, lib.ALL),
                number(push_groups, "push_groups", 0, lib.ALL),
                code_of(lib.DTYPES, grad_dtype, "grad_dtype"),
                code_of(lib.DTYPES, reduce_dtype, "reduce_dtype"),
                code_of(lib.ACCUMULATES, accumulate, "accumulate"),
                bool(private_views),
                code_of(lib.ON_LOST, on_lost_rank, "on_lost_rank"),
                None if device is None else name_of(device, "device"),
                _stash_of(stash),
            )
            with layout.lend() as borrowed:
                self._wait(self._library.zero_attach, borrowed, ctypes.byref(needs))
            where = stash.where if isinstance(stash, Stash) else "windows"
            self._stash_on_gpu = device is not None and where == "windows"
            if not self._named:
                self.finish()
            if not self._own_job:
                _attached.add(self)
        with self._use() as handle:
            self._layout = Layout.of_client(self._library.zero_client_layout(handle), self._use)

    def _group(self, group):
        return number(group, "group", 0, lib.ALL)

    # ---- one step --------------------------------------------------------------------------

    def fetch(self, group: int) -> int:
        """Address of a group's parameters at the current version, in the group's dtype, laid flat
        (Layout.offset()); valid until release() or step().  A group fetched several times takes
        as many releases.  Read-only unless views are private.  Raises TooManyHeld, Deadline,
        Aborted."""
        view = ctypes.c_void_p()
        self._call(self._library.zero_fetch, self._group(group), ctypes.byref(view))
        return view.value

    def prefetch(self, group: int) -> None:
        """Asks the daemon to gather a group.  Does not wait."""
        self._call(self._library.zero_prefetch, self._group(group))

    def release(self, group: int, stream: int | None = None) -> None:
        """Ends one fetch().  stream: a cudaStream_t of attach()'s device, 0 for the default one.  The group counts as
        released when all work that is on the stream now is done; with None at once.  The call waits for the stream
        only if the daemon cannot open this process's events (zero.h, struct zero_sync).  Raises NotHeld, Gpu."""
        self._call(self._library.zero_release, self._group(group), _sync(stream))

    def grad(self, group: int) -> int:
        """Returns the address of memory for one gradient of a group, laid flat like the group, in attach()'s
        grad_dtype.  Its contents are undefined.  Waits for a free slot.  The caller owns the memory until push(),
        which comes before norm() and step().  Raises Order if the caller itself keeps all slots, Rank if this rank
        does not push the group."""
        memory = ctypes.c_void_p()
        self._call(self._library.zero_grad, self._group(group), ctypes.byref(memory))
        return memory.value

    def push(
        self,
        group: int,
        present: bytes | None = None,
        last: bool = True,
        stream: int | None = None,
    ) -> None:
        """Hands a group's gradient over.  Does not wait.  present: one byte for each tensor of the group, 0 for a
        tensor without a gradient in this step; None: all have one.  last is False while more micro-batches of this
        step follow.
        stream: as in release(): the gradient is read when all work that is on the stream now is done.
        A later call reports a refusal."""
        group = self._group(group)
        if present is not None:
            present = memoryview(present).tobytes()
            tensors = len(self._attached().group_tensors(group))
            if len(present) != tensors:
                raise ValueError(
                    f"present has {len(present)} bytes, but group {group} has {tensors} tensors"
                )
        self._call(self._library.zero_push, group, present, bool(last), _sync(stream))

    def _attached(self):
        if self._layout is None:
            with self._use():
                raise NotAttached("attach() was not called yet")
        return self._layout

    def norm(self) -> tuple[float, bool]:
        """Finishes the reduction.  Returns the global norm of the mean gradient, loss scale left in, and True if all
        gradients are finite.  Updates nothing yet.  Waits for all ranks."""
        value, finite = ctypes.c_double(), ctypes.c_bool()
        self._wait(self._library.zero_norm, ctypes.byref(value), ctypes.byref(finite))
        return value.value, finite.value

    def norms(self, plane: str, first: int, count: int) -> list[float]:
        """Returns the Euclidean norms of some tensors, which their owners compute.  plane: "master", a moment
        ("exp_avg", "moment1"), or "grad", the mean gradient of this step, loss scale left in.  A norm is nan if an
        element is not finite, and 0.0 if the tensor has nothing there.

        Any client asks for master and moments, and all norms are of one version.  A rank asks for gradients between
        its last push() and its step(), and no other rank has to.  It pushes nothing more, and waits until all ranks
        have pushed.
        Raises Invalid, OutOfRange, Aborted as step(), and Deadline with a rank that has not pushed.  Raises Busy if
        shards are being moved, and Peer if an owner's node is lost.
        """
        first, count = number(first, "first", 0, lib.ALL), number(count, "count", 0, lib.ALL)
        code = code_of(lib.PLANES, plane, "plane")
        if first + count > self._attached().tensors:
            raise OutOfRange(f"tensors {first}+{count}: the layout has {self._layout.tensors}")
        norms = (ctypes.c_double * count)()
        self._wait(self._library.zero_tensor_norms, code, first, count, norms)
        return list(norms)

    def ahead(self, sets: Sequence[AdamWSet]) -> None:
        """Says how this rank will end the step, before its first push.  Owners then update an eager group
        (Layout.group(eager=True)) as soon as all ranks have pushed its last gradient.  step() then takes the same
        sets only, without clipping and loss scale, and raises Conflict for others.  The updates ahead of a step that
        is skipped or aborted are undone.  Raises Invalid if no group is eager."""
        step = self._step_of(sets, 0.0, 1.0, 0)
        self._call(self._library.zero_ahead, ctypes.byref(step))

    def step(
        self,
        sets: Sequence[AdamWSet],
        clip_norm: float = 0.0,
        loss_scale: float = 1.0,
        growth_interval: int = 0,
        blob: bytes | None = None,
        stream: int | None = None,
    ) -> StepResult:
        """Ends the step: when all ranks have called, the owners update.  Fetched groups are released, and groups that
        were not pushed count as without gradient.

        sets: hyperparameters, indexed by the sets of the tensors; empty: nothing is updated, and the gradients are
        dropped.  clip_norm: clip to this global norm; 0: no clipping.  loss_scale: the factor that the loss was
        multiplied by.  growth_interval: steps without overflow until the loss scale doubles; 0: it stays.  All ranks
        pass the same.  blob: at most 8192 bytes of this rank's own, which are kept with the step, committed or skipped,
        until the next one.  A trainer may keep the place of its data loader.  stream: of reading what is still held, as
        in release().

        Raises Conflict with the rank that passed something else, and Aborted if the step has to be done again.
        Raises Deadline and LostRank with the rank that the step waits for; those leave the step as it is.
        """
        step = self._step_of(sets, clip_norm, loss_scale, growth_interval)
        if blob is not None:
            blob = memoryview(blob).tobytes()
            if len(blob) > lib.BLOB_MAX:
                raise ValueError(f"a rank keeps at most {lib.BLOB_MAX} bytes, not {len(blob)}")
            step.blob, step.blob_bytes = ctypes.cast(blob, ctypes.c_void_p), len(blob)
        sync = _sync(stream)
        step.sync = None if sync is None else ctypes.pointer(sync)
        result = lib.Result()
        self._wait(self._library.zero_step, ctypes.byref(step), ctypes.byref(result))
        return StepResult(
            result.version, result.skipped, result.grad_norm, result.loss_scale, result.skips
        )

    def all_reduce(self, name: str, values: Sequence[float], op: str = "sum") -> list[float]:
        """Reduces at most 64 numbers over all ranks, element by element, and returns the same list on every rank.
        Waits for all ranks.  op: "sum", "max" or "min".  Sums are double, in the order of ranks; max and min are NaN
        if any number is.

        name: of the reduction, at most 63 bytes.  All ranks reduce the same things in the same order.
        Raises Conflict if another rank reduces something else, or ends the step.  Raises Deadline with a rank that
        has not called; the call may then be made again.  Raises Aborted as step(), also if a rank was started again
        in this step: it does not know what the others have reduced.
        """
        if not 0 < len(values) <= lib.VALUES_MAX:
            raise ValueError(f"a reduction has 1 to {lib.VALUES_MAX} numbers, not {len(values)}")
        given = (ctypes.c_double * len(values))(*(float(v) for v in values))
        code = code_of(lib.REDUCTIONS, op, "op")
        self._wait(self._library.zero_all_reduce, name_of(name, "name"), code, len(values), given, given)
        return list(given)

    @staticmethod
    def _step_of(sets, clip_norm, loss_scale, growth_interval):
        sets = [s if hasattr(s, "optimizer") else AdamWSet(*s) for s in sets]
        if len(sets) > lib.SET_MAX:
            raise ValueError(
                f"a step has at most {lib.SET_MAX} hyperparameter sets, not {len(sets)}"
            )
        array = (lib.Set * len(sets))(*map(_set_of, sets))
        return lib.Step(
            array,
            len(sets),
            real(clip_norm, "clip_norm"),
            real(loss_scale, "loss_scale"),
            number(growth_interval, "growth_interval", 0, lib.ALL),
        )

    # ---- activation checkpoints ----------------------------------------------------------------

    def stash_write(
        self, key: int, buffer: int | Any, size: int | None = None, stream: int | None = None
    ) -> None:
        """Writes this rank's part of an entry.  Each rank of the set writes each key once a step, and the same bytes.
        Without room the call waits for ranks that have not released entries which this rank has released.  Entries
        end with step() and with Aborted.

        buffer: the whole entry, contiguous, at least one byte, or an address of `size` bytes, which the caller vouches
        for.  It lies in host memory or on attach()'s device.  stream: with a device, the GPU copies after the work that
        is on the stream now; None: the default stream.  The bytes stay as they are until then.

        Raises Window with the bytes that the stash needs; nothing was written.  Raises Order for a key that is
        written already, or without attach(stash=...).  Raises Conflict, which names two ranks of the set, if they
        write different numbers of bytes, or, in the first step, different bytes.  Raises Aborted, Gpu.
        """
        if isinstance(buffer, numbers.Integral):
            memory, size = number(buffer, "address", 1, 2**64 - 1), number(size, "size", 1, 2**64 - 1)
        else:
            size = memoryview(buffer).nbytes
            memory = _memory(buffer, size, False)
        self._call(self._library.zero_stash_write, self._key(key), memory, size, _sync(stream))

    def stash_view(self, key: int) -> tuple[int, int]:
        """Returns address and bytes of an entry that this rank has written, on attach()'s device if the stash is
        there.  Waits until all ranks of the set have written their parts.  The view is read-only, and valid until
        stash_release(), step() or Aborted.  A rank reads an entry again only after the release.  Raises Order,
        Aborted, and Deadline with the rank that the call waits for."""
        view, size = ctypes.c_void_p(), ctypes.c_uint64()
        self._call(self._library.zero_stash_read, self._key(key), ctypes.byref(view), ctypes.byref(size))
        return view.value, size.value

    def stash_read(self, key: int) -> memoryview:
        """Returns stash_view() as a read-only memoryview.  To touch it when it is not valid any more is a
        segmentation fault.  Raises TypeError for a stash on a GPU."""
        if self._stash_on_gpu:
            raise TypeError("the stash is on a GPU: stash_view() gives the address there")
        address, size = self.stash_view(key)
        return memoryview((ctypes.c_char * size).from_address(address)).cast("B").toreadonly()

    def stash_release(self, key: int, last: bool = True, stream: int | None = None) -> None:
        """Ends a view.  Does not wait.  last: this rank does not read the entry again; it need not have read it at
        all.  The memory is free when all ranks of the set have said so.  stream: of reading the view, as in
        release().  Raises NotHeld, Gpu."""
        self._call(self._library.zero_stash_release, self._key(key), bool(last), _sync(stream))

    def _key(self, key):
        return number(key, "key", 0, 2**64 - 1)

    # ---- state -------------------------------------------------------------------------------

    def get(self, tensor: int, plane: str, first: int, count: int, address: int | Any) -> None:
        """Copies count elements of a tensor's plane, starting at element first, to memory.

        "master", the moments of the optimizer ("exp_avg", "exp_avg_sq") and "ema", the average of the weights, are
        fp32.  "serve" has the group's dtype.  In a group of bytes both "master" and "serve" are words of four bytes.
        "step" (the number of the tensor's updates) and "set" (its hyperparameter set) are one uint64.

        address: an int, which the caller vouches for, or a contiguous writable buffer of exactly that many bytes.
        Raises OutOfRange, NoGroup.
        """
        self._access(self._library.zero_get, tensor, plane, first, count, address, True)

    def put(self, tensor: int, plane: str, first: int, count: int, address: int | Any) -> None:
        """Copies count elements from memory to a tensor's plane, the reverse of get(), at a step boundary and by one
        writer.  "serve" cannot be written: the service makes it from "master"."""
        self._access(self._library.zero_put, tensor, plane, first, count, address, False)

    def put_file(self, fd: int, values: Sequence[FileValues]) -> None:
        """Copies runs of values out of a file, as put() does from memory.  fd: open for reading.  The library reads
        the file a piece at a time, in the order of the runs, while the service takes earlier pieces in.  This process
        has at most 20 MiB of the file in memory.  The library reads what the page cache does not have around the
        cache, and ahead if runs are in the order of the file.

        All runs are checked before the first value is written.  After an error some values may be written.  Raises as
        put(); Conflict if the file is too short, or becomes so meanwhile; InputOutput if it cannot be read."""
        runs = (lib.Values * len(values))()
        for run, v in zip(runs, values):
            run.tensor, run.plane = number(v.tensor, "tensor", 0, lib.ALL), code_of(lib.PLANES, v.plane, "plane")
            run.dtype = code_of({**lib.DTYPES, **lib.BYTES}, v.dtype, "dtype")
            run.first, run.count, run.at = (number(getattr(v, n), n, 0, 2**64 - 1) for n in ("first", "count", "at"))
        self._call(self._library.zero_put_file, number(fd, "fd", 0, 2**31 - 1), runs, len(runs))

    def _access(self, function, tensor, plane, first, count, address, writes):
        tensor = number(tensor, "tensor", 0, lib.ALL)
        code = code_of(lib.PLANES, plane, "plane")
        first, count = number(first, "first", 0, 2**64 - 1), number(count, "count", 0, 2**64 - 1)
        if isinstance(address, numbers.Integral):
            memory = number(address, "address", 0, 2**64 - 1)
            if count and not memory:
                raise ValueError("address is 0")
        else:
            if not tensor < self._attached().tensors:
                raise NoGroup(f"no tensor {tensor}: the layout has {self._layout.tensors}")
            memory = _memory(address, count * self._element_bytes(tensor, plane), writes)
        self._call(function, tensor, code, first, count, memory)

    def _element_bytes(self, tensor, plane):
        if plane == "serve":
            return lib.DTYPE_BYTES[self._layout.dtype(self._layout.tensor_group(tensor))]
        return 8 if plane in ("step", "set") else 4

    def observe(self, call: str, *arguments: Any) -> Any:
        """Makes a call that only reads, such as get() or query(), on another connection, which is no rank.  So an
        abort that comes with its reply takes no view away from another thread that computes with it.  One thread at a
        time.  The call connects again to a lost daemon, for as long as the timeout."""
        end = time.monotonic() + (self._timeout or LOST_S)
        while not self.closed:
            try:
                if self._observer is None:
                    self._observer = connect(self._job, lib.OBSERVER, socket=self._socket, timeout=self._timeout)
                if self._observer.layout is None:
                    self._observer.attach()
                return getattr(self._observer, call)(*arguments)
            except (Aborted, Closed):
                self._end_observer()
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        return getattr(self, call)(*arguments)  # raises Closed

    def _end_observer(self):
        observer, self._observer = self._observer, None
        if observer:
            observer.close()

    # ---- the service -------------------------------------------------------------------------

    def query(self, what: str, argument: str | None = None) -> dict:
        """Asks the daemon, and returns the answer as zeroctl's --json has it.  what: "status", "jobs", "shards",
        "ping", "checksum", "config", or "drop", which deletes the job for good.  argument: a job's name.  zero_query() in zero.h has
        more, such as "checkpoint" and "restore" with a JSON text."""
        answer = ctypes.c_void_p()
        self._wait(
            self._library.zero_query,
            name_of(what, "what"),
            None if argument is None else name_of(argument, "argument"),
            ctypes.byref(answer),
        )
        try:
            return json.loads(ctypes.string_at(answer.value))
        finally:
            self._library.zero_free(answer)

    def keep_job(self, keep: bool = True) -> None:
        """Says, before attach(), if somebody chose the job's name (True), or nobody did (False)."""
        self._named = keep

    def finish(self, keep: bool | None = None) -> None:
        """Declares that this rank has completed the job; close() tells the daemon.  The job is finished when all
        ranks have left in this way.  When job_limit or memory is used up, a new job of the same user takes the place
        of the job that finished first.  keep False, on every rank: the daemon drops the job when the last rank has
        left.  keep None: False if nobody chose the job's name (:func:`connect`), else True."""
        self._call(self._library.zero_finish, self._named if keep is None else bool(keep))

    def close(self) -> None:
        """Ends the session; every address that it returned becomes invalid.  Closing twice is allowed.

        The end of the process with status 0 closes, too.  After any other end the rank counts as lost, and the job
        waits for its successor.  Such ends are an exception, sys.exit() with another status, a signal, and os._exit(),
        by which a fork of multiprocessing ends.  A job whose name nobody chose ends when all its ranks have closed."""
        with self._lock:
            if self._handle is None:
                return
            with self._use() as handle:
                self._handle = None
                self._library.zero_close(handle)
            self._end_observer()
            self._base = self._copy = None
            _attached.discard(self)
            if self._own_job:
                self._drop_own_job()

    def _drop_own_job(self):
        """Drops a job that no other process knows, by another connection: this one may be broken."""
        atexit.unregister(self.close)
        self._own_job = False
        if not self._may_have_job:
            return
        with (
            contextlib.suppress(Error),
            connect(self._job, lib.OBSERVER, socket=self._socket, timeout=5) as client,
        ):
            client.query("drop", self._job)

    def _forget(self):
        super()._forget()
        self._own_job = False

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind, error, trace) -> None:
        """Closes the client.  After an exception it tells the daemon nothing, so the rank counts as lost."""
        if kind is not None and not (isinstance(error, SystemExit) and not error.code):
            with self._lock:
                if self._handle is not None:
                    self._break(f"{kind.__name__} ended the client's block")
        self.close()

    def __repr__(self):
        return f"<zerod.Client of job {self._job!r}, rank {self.rank} of {self.world_size}>"


_attached: set[Client] = set()  # ranks, also those that no other code refers to any more


@atexit.register  # registered on import, so handlers of a script run earlier and find their client
def _close_at_exit():
    """Leaves the close to the library, which alone sees the exit status, at the interpreter's end.  If a thread is
    still in a call, which may be long, the rank has not left in order."""
    for client in list(_attached):
        if client._lock.acquire(blocking=False):
            handle, client._handle = client._handle, None
            client._lock.release()  # a call of another thread now raises Closed
            if handle is not None:
                client._library.zero_close_at_exit(handle)


class BaseCopy:
    """A base on a GPU, mapped as long as a reference to this object exists."""

    def __init__(self, copy: lib.Copy, base: int):
        self.address: int = copy.data
        self.bytes: int = copy.bytes
        self._base = base
        weakref.finalize(self, copy.unmap, copy.data).atexit = False

    def at(self, address: int) -> int:
        """Returns the address on the GPU of the byte that the base has at this address in host memory."""
        return self.address + address - self._base


def _unmap(address, size):
    ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def _muon_of(given):
    """Returns a struct zero_muon, which keeps what it points to alive."""
    coefficients = [real(x, "ns_coefficients") for x in given.ns_coefficients]
    if len(coefficients) != 3:
        raise ValueError(f"ns_coefficients are three numbers, not {len(coefficients)}")
    return lib.Muon(
        real(given.lr, "lr"),
        real(given.momentum, "momentum"),
        real(given.weight_decay, "weight_decay"),
        bool(given.nesterov),
        code_of(lib.ADJUST_LR, "original" if given.adjust_lr is None else given.adjust_lr, "adjust_lr"),
        ctypes.pointer(lib.NewtonSchulz(
            *coefficients, real(given.eps, "eps"), number(given.ns_steps, "ns_steps", 0, 99)
        )),
    )


def _set_of(given):
    result = lib.Set(given.optimizer.encode(), ema_decay=real(given.ema_decay, "ema_decay"))
    if given.optimizer == "muon":
        result.muon = _muon_of(given)
        return result
    values = [real(x, name) for x, name in zip(given, HYPERPARAMETERS[given.optimizer])]
    result.values[: len(values)] = values
    return result


def _sync(stream):
    """Returns a struct zero_sync, or None without a stream."""
    return None if stream is None else lib.Sync(number(stream, "stream", 0, 2**64 - 1))


def _stash_of(stash):
    """Returns a pointer to a struct zero_stash, which keeps its arrays alive, or None without a stash."""
    if stash is None:
        return None
    stash = stash if isinstance(stash, Stash) else Stash(stash)
    size, ranks, entry_bytes, unchecked, where = stash
    ranks = [number(r, "a rank of the stash", 0, lib.RANK_MAX - 1) for r in ranks or ()]
    return ctypes.pointer(lib.Stash(
        (ctypes.c_uint32 * len(ranks))(*ranks) if ranks else None,
        len(ranks),
        number(size, "stash", 1, 2**64 - 1),
        number(entry_bytes, "entry_bytes", 0, 2**64 - 1),
        code_of(lib.STASH_WHERE, where, "where of a stash"),
        bool(unchecked),
    ))


def _memory(buffer, size, writes):
    """Returns the bytes of an object with the buffer protocol, for ctypes."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous")
    if view.nbytes != size:
        raise ValueError(f"the buffer has {view.nbytes} bytes, not {size}")
    if writes and view.readonly:
        raise TypeError("the buffer is read-only")
    if size == 0:
        return None
    return view.tobytes() if view.readonly else (ctypes.c_char * size).from_buffer(buffer)


def timeout_ms(timeout):
    if timeout is None:
        return 0
    timeout = real(timeout, "timeout")
    if not 0 < timeout <= lib.ALL / 1000:
        raise ValueError(
            f"timeout is {timeout:g} seconds, not above 0 and at most {lib.ALL // 1000}"
        )
    return max(1, math.floor(timeout * 1000))


def _job_of(job, place):
    """Returns the job's name, True if this process made it up, and False if torchrun made it up."""
    if job is not None:
        return job, False, True
    job = environment.job()
    if job is not None or place.rank == lib.OBSERVER:
        return job, False, not environment.job_is_random()
    if place.world_size > 1:
        raise ValueError(
            f"a job of {place.world_size} ranks has to be named: pass job=..., or set ZEROD_JOB to "
            "the same name for all ranks (torchrun's --rdzv-id and Slurm's SLURM_JOB_ID name it, too)"
        )
    return environment.own_job(), True, True


def connect(
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    socket: str | None = None,
    timeout: float | None = None,
    incarnation: int | None = None,
) -> Client:
    """Connects to the node's daemon.

    job: the job's name; None: $ZEROD_JOB, else torchrun's run id or Slurm's job id.  Without those a process that is
    alone (world size 1) gets a job of its own, which close() or the end of the process drops.  On one node without
    --rdzv-id torchrun makes up a run id.  Its job ends when all its ranks have closed or ended with status 0.  A random
    UUID of --rdzv-id on one node looks alike: set ZEROD_JOB to it.  Other jobs stay until :func:`drop` or ``zeroctl
    drop JOB``.  A finished job stays until a new job needs its place (:meth:`Client.finish`).
    rank, world_size, local_world_size (ranks on this node): None: torchrun's variables, else Slurm's, else 0, 1, 1.
    A client of rank zerod.OBSERVER takes no part in steps.
    socket: the daemon's; None: $ZEROD_SOCKET, else the default place.
    timeout: seconds, of every blocking call, and of every wait for a lost daemon or a lost rank.  None: a minute (the
    daemon's option wait_ms).  A call then waits longer for a rank whose process runs, or that has not attached yet,
    up to 30 minutes (rank_wait_ms) after its last call.
    incarnation: how often this rank was started before; None: $TORCHELASTIC_RESTART_COUNT, else $SLURM_RESTART_COUNT,
    else 0.  A process takes the rank from a process with a lower incarnation that has not ended.  The daemon refuses
    that process from then on.

    Raises ValueError for variables and arguments that make no sense, ImportError without libzero, Closed if no daemon
    answers at the socket, NotPermitted.
    """
    if rank == lib.OBSERVER:
        place, incarnation = environment.Place(lib.OBSERVER, 1, 1), 0
    else:
        place = environment.place(rank, world_size, local_world_size)
    if incarnation is None:
        incarnation = environment.incarnation()
    job, own, named = _job_of(job, place)
    path = socket if socket is not None else os.environ.get("ZEROD_SOCKET") or None
    options = lib.Options(
        name_of(os.fspath(path), "socket") if path is not None else None,
        name_of(job, "job") if job is not None else None,
        *place,
        timeout_ms(timeout),
        number(incarnation, "incarnation", 0, lib.ALL),
    )
    library, handle = lib.library(), ctypes.c_void_p()
    status = library.zero_connect(ctypes.byref(options), ctypes.byref(handle))
    if status:
        raise error_of(status, (library.zero_error(None) or b"").decode("utf-8", "replace"))
    client = Client(handle.value, job, place, path, timeout, own, named)
    if own:
        atexit.register(client.close)
    return client


def drop(job: str, socket: str | None = None, timeout: float = 60.0) -> None:
    """Deletes a job and its state on all nodes, for good, like ``zeroctl drop JOB``.

    A rank that is attached loses the job, and may end by SIGBUS when it reads an fp32 parameter that it holds.  So
    drop a job before the ranks start, or from one of them at their end.
    Raises NoJob if no job has that name, NotPermitted if the job belongs to another user.
    """
    with connect(job, lib.OBSERVER, socket=socket, timeout=timeout) as client:
        client.query("drop", job)
