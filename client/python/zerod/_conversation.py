"""The calls of one client: one at a time, interruptible, and not in forked processes.

Rules
- Each client has one lock, because libzero takes one thread at a time.  Other Python threads run meanwhile.
- A process made by os.fork() has no client: calls on its parent's client raise Closed, and the
  daemon does not notice the child.
- The handle is None exactly when the client is closed.
"""

import _thread
import contextlib
import os
import threading
import weakref
from concurrent.futures import Future

from . import _library as lib
from .errors import Busy, Closed, error_of

INTERRUPTED = "the connection to zerod was ended because a call was interrupted; connect again"
FORKED = "it belongs to the process that this one was forked from"


class Conversation:
    """A handle of libzero and the calls with it."""

    def __init__(self, handle):
        self._library = lib.library()
        self._handle = handle
        self._lock = threading.RLock()
        self._calling = False
        self._given_up = None  # the reason, if this side ended the connection
        _conversations.add(self)

    def _enter(self):
        """Returns the handle to this thread alone, which has the lock."""
        if self._calling:
            raise Busy(
                "a signal handler called this client during another call of it"
            )
        if self._handle is None:
            raise Closed(f"the client is closed: {self._given_up or 'by close()'}")
        self._calling = True
        return self._handle

    @contextlib.contextmanager
    def _use(self):
        """Lends the handle to this thread alone."""
        with self._lock:
            handle = self._enter()
            try:
                yield handle
            finally:
                self._calling = False

    def _check(self, handle, status):
        if status:
            text = (self._library.zero_error(handle) or b"").decode("utf-8", "replace")
            raise error_of(status, self._given_up or text if status == Closed.code else text)

    def _call(self, function, *arguments):
        with self._lock:  # as _use(), without its generator: a trainer comes here hundreds of times a step
            handle = self._enter()
            try:
                self._check(handle, function(handle, *arguments))
            finally:
                self._calling = False

    def _wait(self, function, *arguments):
        """Makes a call that other ranks may keep waiting.  Only the main thread receives signals."""
        if threading.current_thread() is not threading.main_thread():
            self._call(function, *arguments)
            return
        with self._use() as handle:
            self._check(handle, self._interruptible(function, handle, *arguments))

    def _interruptible(self, function, *arguments):
        """Calls in another thread, so that this thread handles signals while it waits."""
        future = Future()
        try:
            try:
                _thread.start_new_thread(_run, (future, function, arguments))
            except RuntimeError:  # no thread starts any more at the interpreter's end
                return function(*arguments)
            return future.result()
        except BaseException:
            if not future.cancel():  # it has begun
                self._end_of_call(future)
            raise

    def _end_of_call(self, future):
        """Waits for the call's end, whatever other signals come.  Until then the client is in use."""
        while not future.done():
            with contextlib.suppress(BaseException):
                self._break(INTERRUPTED)
                future.exception()

    def _break(self, why):
        """Ends the connection as the end of the process would: the rank counts as lost, and the ranks that wait for
        it are told."""
        self._given_up = why
        self._library.zero_interrupt(self._handle)

    def _forget(self):
        """Drops the parent's connection, in a forked child.  An open connection would hide the parent's end from the
        daemon."""
        self._lock, self._calling = threading.RLock(), False
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._library.zero_fd(self._handle))
            self._handle, self._given_up = None, FORKED


def _run(future, function, arguments):
    """Makes a call in a thread of its own."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(*arguments))
        except Exception as why:  # pylint: disable=broad-except
            future.set_exception(why)


_conversations: "weakref.WeakSet[Conversation]" = weakref.WeakSet()


def _forget_all():
    for conversation in list(_conversations):
        conversation._forget()


os.register_at_fork(after_in_child=_forget_all)
