"""TCP ports on loopback for daemons under test."""
import socket


class Ports:
    """Ports below the kernel's range of ephemeral ports, in blocks; a test process owns a block until it ends."""
    FIRST, EACH, BLOCKS = 20000, 200, 60

    def __init__(self):
        self.lock, self.block, self.next = None, 0, 0

    def own_block(self):
        for block in range(self.BLOCKS):
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0zerod-test-ports-{block}")
                self.lock, self.block = lock, self.FIRST + block * self.EACH
                return
            except OSError:
                lock.close()
        raise AssertionError("too many test processes run at once")

    def take(self):
        """The next free port. Ports are not reused soon, because the daemon of a free port may just be restarting."""
        if not self.lock:
            self.own_block()
        for _ in range(self.EACH):
            port = self.block + self.next
            self.next = (self.next + 1) % self.EACH
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a daemon does: of old links it has a minute
                try:
                    s.bind(("127.0.0.1", port))
                    return port
                except OSError:
                    continue
        raise AssertionError("no free port")


ports = Ports()


def free_ports(n):
    return [ports.take() for _ in range(n)]
