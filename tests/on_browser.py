"""Chromium, told what to do over its DevTools protocol, and a JupyterLab for it to open."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A page of a browser: what it raised or logged as errors, and what it asked for (if ``Network.enable`` was)."""

    def __init__(self, socket):
        self._socket, self._number, self.errors, self.logged, self.requests = socket, 0, [], [], []

    def call(self, method, **parameters):
        """Call a method of the protocol; return its result."""
        number = self._send(method, **parameters)
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.logged.append(message["params"]["entry"]["text"])
            if message.get("method") == "Runtime.consoleAPICalled" and message["params"]["type"] == "error":
                self.logged.append(str([each.get("value") for each in message["params"]["args"]]))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("method") == "Page.javascriptDialogOpening":  # "leave without saving?"
                self._send("Page.handleJavaScriptDialog", accept=True)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _send(self, method, **parameters):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return self._number

    def run(self, script):
        """Return what a script's value is, once it has one."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script, seconds=60):
        """Wait until a script is true, and return its value."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"not true after {seconds} s: {script}"
            time.sleep(0.1)
        return found

    def key(self, name, code):
        """Press a key, as a person would."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def open(self, url, width=1200, dark=False):
        """Open an address, and wait until it has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState == 'complete' && location.href.startsWith({url.split('#')[0]!r})")

    def click(self, script):
        """Click into the middle of an element."""
        self.run(f"({script}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.run(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(({script}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


@contextmanager
def browser(folder):
    """Open a page in a Chromium that has `folder` to itself."""
    from websocket import create_connection

    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--remote-allow-origins=*"]
    flags.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # no request leaves this machine
    command = [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", "--window-size=1300,1000", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = appears(folder / "profile" / "DevToolsActivePort").splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            page = next(each for each in json.load(answer) if each["type"] == "page")
        connection = create_connection(page["webSocketDebuggerUrl"], timeout=120, max_size=None)
        opened = Page(connection)
        opened.call("Page.enable")
        opened.call("Runtime.enable")
        opened.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield opened
        connection.close()
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def jupyterlab(folder, root):
    """Run a JupyterLab whose pages say what they are made of; yield its address."""
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')  # all cells are there
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--ServerApp.port={port}", "--ServerApp.token=", "--ServerApp.password=", "--no-browser"]
    options += [f"--ServerApp.root_dir={root}", "--allow-root", "--LabApp.expose_app_in_browser=True"]
    options.append(f"--LabApp.user_settings_dir={folder / 'settings'}")
    home = {"JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data"), "HOME": str(folder)}
    home |= {"PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "BPPSA_NB_CACHE": str(folder / "cache")}
    home["JUPYTER_PLATFORM_DIRS"] = "1"
    with open(folder / "lab.log", "w") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        process = subprocess.Popen(command, env=os.environ | home, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api").close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < end, (folder / "lab.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def appears(path, seconds=30):
    """Wait until a file has come and is not empty; return its text."""
    end = time.monotonic() + seconds
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.1)
    return path.read_text()
