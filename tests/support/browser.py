"""A headless Chromium, driven through chromedriver by the WebDriver protocol (https://www.w3.org/TR/webdriver2)."""
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess

from cluster import SLOW, end_process, spawn, until
from harness import Skip
from ports import free_ports


class Browser:
    """Its files lie in `directory`, and processes end with the one that started them."""

    def __init__(self, directory):
        self.chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if not self.chromium or not driver:
            raise Skip("needs chromium and chromedriver (packages chromium, chromium-driver)")
        self.port, self.session = free_ports(1)[0], None
        with open(f"{directory}/chromedriver.log", "wb") as log:
            self.process = spawn([driver, f"--port={self.port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True,
                                 env={**os.environ, **dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR"), directory)})
        try:
            until(self.ready, what="chromedriver")
            self.start(directory)
        except BaseException:
            self.end()
            raise

    def start(self, directory):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     f"--user-data-dir={directory}/chromium", "--window-size=1200,1000"]
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": self.chromium, "args": arguments}}}})
        self.session = f"/session/{answer['sessionId']}"

    def ready(self):
        try:
            return self.call("GET", "/status")["ready"]
        except OSError:
            return False

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        assert not isinstance(answer, dict) or "error" not in answer, (path, answer)
        return answer

    def ask(self, path, **body):
        return self.call("POST", self.session + path, body)

    def open(self, url):
        self.ask("/url", url=url)

    def run(self, script, *arguments):
        """What the function body `script` returns in the page."""
        return self.ask("/execute/sync", script=script, args=arguments)

    def text(self):
        """What a person can read."""
        return self.run("return document.body.innerText")

    def key(self, key):
        self.ask("/actions", actions=[{"type": "key", "id": "keys", "actions": [
            {"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]}])

    def developer(self, command, **parameters):
        return self.ask("/goog/cdp/execute", cmd=command, params=parameters)

    def look(self, width, height, dark=False):
        """The size of the screen in pixels, and whether the person likes it dark."""
        self.developer("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.developer("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def complaints(self):
        """What the console has said since the last call: errors, and what the policy forbade."""
        return [entry["message"] for entry in self.ask("/se/log", type="browser")]

    def end(self):
        try:
            if self.session:
                self.call("DELETE", self.session)
        finally:
            end_process(self.process, 20 * SLOW)
            with contextlib.suppress(ProcessLookupError):  # a Chromium that its driver has left
                os.killpg(self.process.pid, signal.SIGKILL)
