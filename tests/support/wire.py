"""Frames of the unix socket as bytes, to send what libzero never sends.

Messages are those of proto/client.proto, written by field number.
"""
import array
import os
import re
import socket
import struct

BODY = {"hello": 2, "attach": 3, "fetch": 4, "prefetch": 5, "release": 6, "push": 7, "norm": 8, "step": 9, "ahead": 16, "put": 10,
        "get": 11, "query": 12, "bye": 13, "stash": 14, "open_base": 17, "all_reduce": 18, "norms": 19, "follow": 21, "unfollow": 22}
OK, EINVAL, EPROTO, EVERSION, EORDER, EDEADLINE, ELOSTRANK, EBUSY = 0, 1, 2, 3, 17, 19, 20, 24  # of enum zero_status
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../proto/client.proto"), encoding="utf-8") as _proto:
    PROTOCOL = int(re.search(r"enum Protocol \{[^}]*VERSION = (\d+);", _proto.read()).group(1))


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """An integer, a double, bytes, text, or a list of fields as bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(fields):
    """{number: value or list of values}."""
    return b"".join(field(k, v) for k, values in fields.items()
                    for v in (values if isinstance(values, list) else [values]))


def frame(payload):
    return struct.pack("<I", len(payload)) + payload


def request(seq, what, fields=None):
    return frame(field(1, seq) + field(BODY[what], message(fields or {})))


def decode(data, some=False):
    """{number: list of values} of a message; some: its first fields may be all that there is."""
    fields, i = {}, 0

    def read_varint():
        nonlocal i
        n = shift = 0
        while True:
            n |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if not data[i - 1] & 128:
                return n
    while i < len(data):
        key = read_varint()
        if key & 7 == 0:
            value = read_varint()
        elif some:
            break
        elif key & 7 == 1:
            value, = struct.unpack_from("<d", data, i)
            i += 8
        else:
            size = read_varint()
            value = data[i:i + size]
            i += size
        fields.setdefault(key >> 3, []).append(value)
    return fields


WAITS = 17  # in a reply


class Raw:
    """A connection whose messages the test writes; it enforces no rules."""

    def __init__(self, path, timeout=60):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.seq, self.buffer, self.fds = 0, b"", array.array("i")

    def send(self, data):
        self.socket.sendall(data)

    def ask(self, what, fields=None):
        """A request and its reply: (status, text, fields)."""
        self.seq += 1
        self.send(request(self.seq, what, fields))
        return self.reply()

    def frame(self):
        return decode(self.read(struct.unpack("<I", self.read(4))[0]))

    def reply(self):
        """The next answer; what tells only that a call waits is none."""
        fields = self.frame()
        while WAITS in fields:
            fields = self.frame()
        return fields.get(2, [0])[0], fields.get(3, [b""])[0].decode(), fields

    def read(self, n):
        while len(self.buffer) < n:
            data, more, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(16))
            for _, _, fds in more:
                self.fds.frombytes(fds[:len(fds) // 4 * 4])
            if not data:
                raise EOFError("the daemon has closed the connection")
            self.buffer += data
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def hello(self, job="", rank=-1, world=0, **fields):
        """Sends hello; rank is zigzag-encoded in the message."""
        return self.ask("hello", {1: fields.get("protocol", PROTOCOL), 2: job, 3: rank << 1 ^ rank >> 31, 4: world,
                                  5: fields.get("local", world), 6: fields.get("timeout_ms", 5000), 7: fields.get("oldest", 0)})

    def closed(self):
        """Whether the daemon closes the connection; reads and discards what it sends before."""
        try:
            while True:
                if not self.socket.recv(1 << 16):
                    return True
        except ConnectionError:
            return True
        except socket.timeout:
            return False

    def close(self):

        for fd in self.fds:
            os.close(fd)
        self.socket.close()


def layout_message(groups):
    """A protobuf Layout from a description as cluster.py makes it: fp32, default ranks."""
    out = b""
    for g in groups:
        tensors = [message({1: t["name"], 2: list(t["shape"])}) for t in g["tensors"]]
        out += field(1, message({1: g["name"], 2: 1, 5: tensors}))
    return out
