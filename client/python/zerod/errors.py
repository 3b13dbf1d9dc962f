"""Exceptions, one for each status of libzero.

A refusal of the service or of the library is an Error.  Its text is libzero's sentence, which names the cause and the
way out.  Wrong Python arguments are TypeError and ValueError, as everywhere.

Rule: the table mirrors ZERO_STATUS_MAP of zero_types.h, where codes are only ever appended.
"""

__all__ = [
    "Aborted", "Busy", "Closed", "Conflict", "Deadline", "Error", "Gone", "Gpu", "InputOutput", "Internal", "Invalid",
    "LayoutMismatch", "LostRank", "NoGroup", "NoJob", "NoMemory", "NoSharedMemory", "NotAttached", "NotHeld",
    "NotPermitted", "Order", "OutOfRange", "Peer", "Protocol", "ProtocolVersion", "Quota", "Rank", "TooManyHeld",
    "Window",
]


class Error(Exception):
    """A call was refused or failed.

    status is the name of the status, such as "ELAYOUT"; code is its number.  str() is libzero's sentence.
    """

    status = "EINTERNAL"
    code = 25


class Invalid(Error):
    """An argument makes no sense, or the job's layout does not allow it."""


class Gone(Error):
    """The version is gone: the job has gone on."""


class Protocol(Error):
    """The other side broke the protocol."""


class ProtocolVersion(Error):
    """Library and daemon speak different versions of the protocol."""


class NoMemory(Error):
    """Out of memory."""


class NoSharedMemory(Error):
    """The node is out of shared memory."""


class Quota(Error):
    """A quota of the user or of the daemon is reached."""


class NotPermitted(Error):
    """The socket or the job belongs to another user, or the session may only read."""


class NoJob(Error):
    """No job has that name, or no job was named."""


class LayoutMismatch(Error):
    """The job has another layout; the text names the first difference."""


class Rank(Error):
    """The rank is taken, out of range, or not among those that push a group."""


class NotAttached(Error):
    """The client is not attached to a job: call attach() first."""


class NoGroup(Error):
    """The layout has no such group or tensor."""


class OutOfRange(Error):
    """Elements lie outside the tensor, or a value outside its range."""


class NotHeld(Error):
    """The group or the entry was not fetched, or is released already."""


class TooManyHeld(Error):
    """More groups are fetched at once than attach() declared."""


class Window(Error):
    """The node's gather window is too small; the text says the size needed."""


class Order(Error):
    """The call does not fit the state of the step."""


class Conflict(Error):
    """The ranks of the job passed different values; the text names a rank."""


class Deadline(Error):
    """The timeout passed; the text names the rank, node or disk that the call waited for."""


class LostRank(Error):
    """A rank that this rank waits for is gone; the text names it."""


class Peer(Error):
    """A node of the cluster cannot be reached."""


class Closed(Error):
    """The connection is closed, or could not be made.  This is final for the client; a rank connects to a lost daemon
    again by itself."""


class InputOutput(Error):
    """The daemon could not read or write its files."""


class Busy(Error):
    """The other side, or this client, is busy with something else."""


class Internal(Error):
    """A bug of the service."""


class Aborted(Error):
    """The attempt was aborted because a node, a daemon or a rank was lost.  Fetched groups and pushed gradients are
    gone: repeat the step from its first fetch.  Client.version says which step: it is one higher if the step was
    committed after all."""


class Gpu(Error):
    """The named GPU does not exist, or cannot be used."""


# name of the status, code, exception; zero_types.h has the same order and codes
STATUS = (
    ("OK", 0, None),
    ("EINVAL", 1, Invalid),
    ("EPROTO", 2, Protocol),
    ("EVERSION", 3, ProtocolVersion),
    ("ENOMEM", 4, NoMemory),
    ("ESHM", 5, NoSharedMemory),
    ("EQUOTA", 6, Quota),
    ("EPERM", 7, NotPermitted),
    ("ENOJOB", 8, NoJob),
    ("ELAYOUT", 9, LayoutMismatch),
    ("ERANK", 10, Rank),
    ("ENOTATTACHED", 11, NotAttached),
    ("ENOGROUP", 12, NoGroup),
    ("ERANGE", 13, OutOfRange),
    ("ENOTHELD", 14, NotHeld),
    ("EHELD", 15, TooManyHeld),
    ("EWINDOW", 16, Window),
    ("EORDER", 17, Order),
    ("ECONFLICT", 18, Conflict),
    ("EDEADLINE", 19, Deadline),
    ("ELOSTRANK", 20, LostRank),
    ("EPEER", 21, Peer),
    ("ECLOSED", 22, Closed),
    ("EIO", 23, InputOutput),
    ("EBUSY", 24, Busy),
    ("EINTERNAL", 25, Internal),
    ("EABORTED", 26, Aborted),
    ("EGPU", 27, Gpu),
    ("EGONE", 28, Gone),
)

_by_code = {}
for _name, _code, _kind in STATUS:
    if _kind:
        _kind.status, _kind.code = _name, _code
        _by_code[_code] = _kind


def error_of(code: int, text: str) -> Error:
    """Returns the exception for a status code.  A code of a newer library gives a plain Error."""
    kind = _by_code.get(code)
    if kind:
        return kind(text)
    error = Error(text)
    error.status, error.code = f"status {code}", code
    return error
