"""A TCP relay between two nodes, which can cut their connections, and damage or silence the bulk ones, as a
network or an attacker could.

The first bytes of a connection say whether it is a link or a bulk connection (daemon/fabric/link/handshake.c).
"""
import select
import socket
import threading

from cluster import Cluster
from ports import free_ports

ROLE, BULK, PIECE = slice(24, 28), 2, 1 << 16


class Pair:
    """An accepted connection and the connection made for it; passed: bytes relayed from each side."""

    def __init__(self, near, far):
        self.sockets, self.passed, self.silent, self.role = (near, far), [0, 0], False, None

    def pass_on(self, side, relay):
        """Relays data from a side (0: the dialler).  False: the connection has ended."""
        try:
            data = bytearray(self.sockets[side].recv(PIECE))
            if not data:
                return False
            if self.role is None:
                self.role = int.from_bytes(data[ROLE], "little")
            if self.silent:
                return True
            if self.role == BULK:
                relay.tamper(self, side, data)
            self.sockets[1 - side].sendall(data)
        except OSError:
            return False
        self.passed[side] += len(data)
        return True


class Relay:
    """Listens on `port` and relays to port `to` until end()."""

    def __init__(self, to):
        self.to, self.pairs, self.flips, self.is_cut = to, [], [0, 0], False
        self.port, = free_ports(1)
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.wake, self.woken = socket.socketpair()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            ends = {s: (p, i) for p in self.pairs for i, s in enumerate(p.sockets)}
            for s in select.select([self.listener, self.woken, *ends], [], [])[0]:
                if s is self.woken:
                    if not self.woken.recv(1):
                        return
                    for pair in list(self.pairs):
                        self.close(pair)
                    break
                if s is self.listener:
                    self.accept()
                elif ends[s][0] in self.pairs and not ends[s][0].pass_on(ends[s][1], self):
                    self.close(ends[s][0])

    def accept(self):
        near, _ = self.listener.accept()
        if self.is_cut:
            near.close()
            return
        try:
            self.pairs.append(Pair(near, socket.create_connection(("127.0.0.1", self.to), 10)))
        except OSError:
            near.close()

    def close(self, pair):
        self.pairs.remove(pair)
        for s in pair.sockets:
            s.close()

    def cut(self):
        """Ends all connections, and refuses others until mend()."""
        self.is_cut = True
        self.wake.send(b"!")

    def mend(self):
        self.is_cut = False

    def bulk(self):
        """The open bulk connections."""
        return [p for p in list(self.pairs) if p.role == BULK]

    def silence(self):
        """Drops all further data on the open bulk connections, without closing them; those connections."""
        standing = self.bulk()
        for pair in standing:
            pair.silent = True
        return standing

    def flip(self, side):
        """Flips one bit in the middle of the next large piece of a payload from a side."""
        self.flips[side] += 1

    def tamper(self, pair, side, data):
        if self.flips[side] and pair.passed[side] > 1000 and len(data) > 1 << 14:
            self.flips[side] -= 1
            data[len(data) // 2] ^= 0x10

    def end(self):
        self.wake.close()
        self.thread.join()
        for pair in list(self.pairs):
            self.close(pair)
        self.listener.close()
        self.woken.close()


class Wires(Cluster):
    """Nodes whose connections with the first one go through a relay each: relays[i] is that of node i + 1."""

    def __init__(self, nodes, **options):
        self.relays = []
        super().__init__(nodes, start=False, bulk="tcp", **options)
        mine = self[0].options
        for daemon in self.daemons[1:]:
            self.relays.append(Relay(daemon.port))
            mine["peers"] = mine["peers"].replace(f":{daemon.port}", f":{self.relays[-1].port}")
        self.start()

    def end(self):
        super().end()
        for relay in self.relays:
            relay.end()
