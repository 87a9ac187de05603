"""A headless Chromium for tests of pages, driven over its DevTools protocol through two pipes.

No library is needed: a command is one JSON object, ended by a zero byte, and so is an answer.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS = 60  # that an answer may take on a busy machine


def executable():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One page of a browser: `open`, `run` JavaScript, `size` the window, choose `colours`."""

    def __init__(self, folder):
        self.downloads = pathlib.Path(folder) / "downloads"
        self.downloads.mkdir(parents=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [executable(), *FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        plumbing = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, "bash", *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self.events, self._session = b"", 0, [], None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        self(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=os.fspath(self.downloads)
        )

    def __call__(self, method, **params):
        """Send a command and return its answer; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        """The next object that Chromium writes."""
        until = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
            assert ready, "Chromium did not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def open(self, path):
        """Open a file, and wait until it is drawn."""
        self("Page.navigate", url=pathlib.Path(path).absolute().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script):
        """Wait until an expression is true."""
        until = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < until, script
            time.sleep(0.02)

    def size(self, width, height=900):
        """Give the window a size in CSS pixels."""
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def colours(self, scheme):
        """Prefer "light" or "dark" pages."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", features=features)

    def press(self, key, code=0):
        """Press a key, such as "ArrowRight", in what has the focus."""
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def move(self, x, y):
        """Move the pointer."""
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def downloaded(self, name):
        """The text of a file that the page saved."""
        path = self.downloads / name
        until = time.monotonic() + SECONDS
        while not path.exists():
            assert time.monotonic() < until, f"{name} was not saved"
            time.sleep(0.02)
        return path.read_text(encoding="utf-8")

    def screenshot(self, path, full=True):
        """A PNG of the page."""
        answer = self("Page.captureScreenshot", captureBeyondViewport=full)
        pathlib.Path(path).write_bytes(base64.b64decode(answer["data"]))

    def complaints(self):
        """Errors and warnings of the console, and what could not be loaded or was forbidden."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            elif method == "Log.entryAdded":
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(str(params["args"]))
        return found

    def requests(self):
        """The addresses of everything that was loaded."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self):
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._read)
        os.close(self._write)
