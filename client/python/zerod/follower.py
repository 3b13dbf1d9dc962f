"""Following a job: whole versions of its parameters, for programs that are none of its ranks.

    with zerod.follow("my-job") as job:
        for weights in job:  # the newest version, then each newer one that is the newest when it is asked for
            with weights:
                for name, values in weights:  # a read-only memoryview of each tensor's bytes
                    ...

Rollout engines, evaluations and exports read this way.  Trainers wait for no reader.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _library as lib
from .client import LOST_S, Client, connect, timeout_ms
from .errors import Closed, Deadline, NoGroup, NoJob
from .layout import Layout, code_of, number

NEWEST = 2**64 - 1
Form = dict[int, str]  # {group: the dtype in which it is read}


class Weights:
    """A whole version of a job's parameters, held until release() or the end of the block.

    All values are those between two steps, bit for bit as the ranks fetch them, or rounded once to follow()'s dtype.
    They lie in read-only memory that readers of the node share.  After release() later versions are written there, so
    copy what stays.  To touch the memory after the follower is closed, or to write to it, is a segmentation fault.
    """

    def __init__(self, reader: "_Reader", held: lib.Weights):
        self._reader, self._held = reader, held
        self._addresses: list[int] | None = reader.addresses(held)

    @property
    def version(self) -> int:
        """The number of committed steps."""
        return self._held.version

    @property
    def layout(self) -> Layout:
        """The job's layout: names, shapes and dtypes of tensors."""
        return self._reader.layout

    @property
    def tensors(self) -> list[int]:
        """The tensors that are in this version: those of follow()'s groups, in the job's order."""
        return [t for t in range(self.layout.tensors) if self.layout.tensor_group(t) in self._reader.form]

    def dtype(self, tensor: int) -> str:
        """Returns the dtype that a tensor has here.  Raises NoGroup if follow() left its group out."""
        group = self.layout.tensor_group(tensor)
        if group not in self._reader.form:
            raise NoGroup(f"tensor {self.layout.tensor_name(tensor)!r} is not in this version: its group "
                          f"{self.layout.group_name(group)!r} is not one of follow()'s groups")
        return self._reader.form[group]

    def _at(self) -> list[int]:
        """Returns where the groups lie.  Raises ValueError after release()."""
        if self._addresses is None:
            raise ValueError(f"version {self.version} is released")
        return self._addresses

    def address(self, tensor: int) -> int:
        """Returns where the tensor's elements lie.  Raises ValueError after release()."""
        size = lib.DTYPE_BYTES[self.dtype(tensor)]
        return self._at()[self.layout.tensor_group(tensor)] + self.layout.offset(tensor) * size

    def bytes_of(self, tensor: int) -> int:
        """Returns how many bytes a tensor has here."""
        dtype = self.dtype(tensor)
        return math.prod(self.layout.shape(tensor)) * (1 if dtype in lib.BYTES else lib.DTYPE_BYTES[dtype])

    def view(self, tensor: int) -> Any:
        """Returns a read-only memoryview of a tensor's bytes, laid flat."""
        address, size = self.address(tensor), self.bytes_of(tensor)
        return memoryview((ctypes.c_char * size).from_address(address) if size else b"").cast("B").toreadonly()

    def metadata(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Returns name, dtype and shape of each tensor, in the order of the iteration."""
        names = self.layout
        return [(names.tensor_name(t), self.dtype(t), names.shape(t)) for t in self.tensors]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for tensor in self.tensors:
            yield self.layout.tensor_name(tensor), self.view(tensor)

    def release(self) -> None:
        """Ends the hold.  Released already: nothing happens."""
        if self._addresses is not None:
            self._addresses = None
            self._reader.release(self._held)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of version {self.version}>"


class _Reader:
    """One connection, which lasts as long as one of its versions is held: the memory is the connection's."""

    def __init__(self, client: Client, form_of: Callable[[Layout], Form]):
        self.client, self.held, self.left = client, 0, False
        client.attach()
        assert client.layout
        self.layout: Layout = client.layout
        self.form = form_of(self.layout)
        codes = {**lib.DTYPES, **lib.BYTES}
        form = (lib.Form * len(self.form))(*(lib.Form(group, codes[dtype]) for group, dtype in self.form.items()))
        client._call(client._library.zero_follow_form, form, len(form))

    def addresses(self, held: lib.Weights) -> list[int]:
        group, groups = self.client._library.zero_weights_group, self.layout.groups
        with self.client._use() as handle:
            return [group(handle, ctypes.byref(held), g) or 0 for g in range(groups)]

    def wait(self, least: int, most: int, seconds: float) -> lib.Weights:
        held = lib.Weights()
        ms = timeout_ms(max(seconds, 0.001))
        self.client._wait(self.client._library.zero_follow, least, most, ms, ctypes.byref(held))
        self.held += 1
        return held

    def release(self, held: lib.Weights) -> None:
        self.held -= 1
        try:
            self.client._call(self.client._library.zero_unfollow, ctypes.byref(held))
        except (Closed, NoJob):
            pass  # the daemon keeps nothing for this connection
        finally:
            if self.left:
                self.leave()

    def leave(self) -> None:
        self.left = True
        if self.held == 0:
            self.client.close()


class Follower:
    """A reader of a job; follow() makes it.  One thread at a time.  A lost daemon is found again."""

    _kind: Callable[["_Reader", lib.Weights], Weights] = Weights

    def __init__(self, job: str | None, socket: str | None, timeout: float | None,
                 groups: Iterable[str | int] | None = None, dtype: str | None = None):
        self._job, self._socket = job, socket
        self._groups = None if groups is None else list(groups)
        self._dtype = dtype
        if dtype is not None:
            code_of(lib.DTYPES, dtype, "dtype")
        self._timeout = LOST_S if timeout is None else timeout_ms(timeout) / 1000
        self._reader: _Reader | None = None
        self._closed = False

    def wait(self, newer_than: int | None = None, version: int | None = None,
             timeout: float | None = None) -> Weights:
        """Waits for a whole version, and holds it.

        newer_than: the newest version, if it is above that; None: the newest there is.  version: that version alone.
        timeout: seconds; None: follow()'s.  Meanwhile the job may still have to be made, and a lost daemon to come
        back.  Raises Deadline with what is missing, Gone if the job is past `version`, NoJob, NotPermitted, Closed.
        """
        if version is not None and newer_than is not None:
            raise ValueError("pass newer_than or version, not both")
        if version is not None:
            least = most = number(version, "version", 0, NEWEST)
        else:
            least, most = 0 if newer_than is None else number(newer_than, "newer_than", 0, NEWEST - 1) + 1, NEWEST
        return self._wait(least, most, least, self._timeout if timeout is None else timeout_ms(timeout) / 1000)

    def _wait(self, least: int, most: int, afresh: int, seconds: float) -> Weights:
        """afresh: the least version once the connection was lost; the job may be restored by then."""
        end = time.monotonic() + seconds
        while True:
            try:
                reader = self._read()
                held = reader.wait(least, most, end - time.monotonic())
                try:
                    return self._kind(reader, held)
                except BaseException:
                    reader.release(held)
                    raise
            except Deadline:
                if time.monotonic() >= end:
                    raise
            except (Closed, NoJob):
                self._leave()
                if self._closed or time.monotonic() >= end:
                    raise
                least = afresh
                time.sleep(0.1)

    def _form(self, layout: Layout) -> Form:
        """Returns the groups to read, each with its dtype.  Groups of bytes keep theirs."""
        names = {layout.group_name(g): g for g in range(layout.groups)}
        form = {}
        for of in range(layout.groups) if self._groups is None else self._groups:
            group = names.get(of) if isinstance(of, str) else number(of, "a group", 0, lib.ALL)
            if group is None or group >= layout.groups:
                raise NoGroup(f"groups={self._groups}: the job has no group {of!r}; its groups are {', '.join(names)}")
            if group in form:
                raise ValueError(f"groups={self._groups} names group {layout.group_name(group)!r} twice")
            own = layout.dtype(group)
            form[group] = self._dtype if self._dtype and own in lib.DTYPES else own
        return form

    def _read(self) -> _Reader:
        if self._closed:
            raise Closed("the follower is closed")
        if self._reader is None:
            client = connect(self._job, lib.OBSERVER, socket=self._socket, timeout=self._timeout)
            try:
                self._reader = _Reader(client, self._form)
            except BaseException:
                client.close()
                raise
        return self._reader

    def _leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader:
            reader.leave()

    def __iter__(self) -> Iterator[Weights]:
        """Yields the newest version, then newer ones without end.  Versions that pass meanwhile are left out.  A
        restored job begins again at its checkpoint's version.  Raises as wait()."""
        newer = 0
        while True:
            weights = self._wait(newer, NEWEST, 0, self._timeout)
            if weights.version + 1 == newer:  # the connection was lost, and the job has not gone on
                weights.release()
                continue
            newer = weights.version + 1
            yield weights

    def close(self) -> None:
        """Leaves the job.  Versions that are held stay valid until they are released."""
        self._closed = True
        self._leave()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def follow(job: str | None = None, socket: str | None = None, timeout: float | None = None, *,
           groups: Iterable[str | int] | None = None, dtype: str | None = None) -> Follower:
    """Follows a job's parameters: reads whole versions, on any node of the cluster.

    job: None: $ZEROD_JOB.  socket, timeout: as :func:`connect`.  Connects with the first wait().
    groups: names or numbers of those to read; None: all.  The first wait() raises NoGroup.
    dtype: "fp32", "bf16" or "fp16", in which parameters are read; None: each in its group's.  bf16 and fp16 of fp32 are
    rounded to nearest even, and fp32 of either is exact; the first wait() raises Invalid for bf16 of fp16 and the like.
    Frozen parameters that are kept as bytes stay as they are.
    Another user than the trainers' needs the grant of the job's owner (`zeroctl grant`), or wait() raises NotPermitted.
    A node keeps follow_copies versions of a job for its readers, so release what is read.
    """
    return Follower(job, socket, timeout, groups, dtype)
