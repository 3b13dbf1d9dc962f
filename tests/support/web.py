"""Requests over HTTP to a daemon, and to others."""
import http.client
import socket


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def request(place, path, method="GET", **headers):
    """place: HOST:PORT or a socket's path; (status, headers, text)."""
    if place.startswith("/"):
        connection = Unix(place)
    else:
        host, port = place.rsplit(":", 1)
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()
    finally:
        connection.close()


def get(daemon, path, **headers):
    """The text of an answer that has to be good."""
    status, _, text = request(daemon.options["http"], path, **headers)
    assert status == 200, (path, status, text)
    return text
