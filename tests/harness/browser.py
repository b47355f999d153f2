"""A real Chromium without a window, driven by its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--force-device-scale-factor=1", "--remote-debugging-pipe", "about:blank"),
)
WAIT_SECONDS = 120.0
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
"""The path of a Chromium, or None where none is installed."""
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="Chromium is not installed (apt install chromium)"
)
FAINT = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const mixed = (over, under, part) =>
    over.map((value, at) => value * part + under[at] * (1 - part));
  const light = colour => colour.map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  return [...document.querySelectorAll('main svg text')].map(text => {
    const card = parts(getComputedStyle(text.closest('.card, .tile')).backgroundColor);
    const box = text.closest('g')?.querySelector('.box');
    const style = box && getComputedStyle(box);
    const ground = box ? mixed(parts(style.fill), card, Number(style.opacity)) : card;
    const both = [light(parts(getComputedStyle(text).fill)), light(ground)];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    return [contrast, text.textContent, box?.getAttribute('class')];
  }).filter(([contrast]) => contrast < 4.5).map(String);
})()"""
KEYS = {
    "Enter": ("\r", 13),
    "Tab": ("", 9),
    "Escape": ("", 27),
    "ArrowUp": ("", 38),
    "ArrowDown": ("", 40),
}
"""Named keys: the text that they write, and their code, by which a browser knows what they do."""
AXE = Path(__file__).parents[1] / "fixtures/axe/axe.min.js"
FAULTS = """axe.run(document, {resultTypes: ["violations"]}).then(found =>
  found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary}`)))"""


class BrowserTab:
    """One tab, and what its page logged, failed to load, or asked for."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self._process, self._commands, self._answers = process, commands, answers
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.received_bytes = 0
        """What answers had below their headers."""
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        """Open an address in a window of that size."""
        self.resize(width, height)
        self._call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Let the window have that size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def colours(self, kind: str) -> None:
        """Prefer light or dark colours, as the system may."""
        features = [{"name": "prefers-color-scheme", "value": kind}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Return the value of an expression once it is true."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            found = self.run(f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()")
            if found:
                return found
            time.sleep(0.05)
        text = self.run("document.body.innerText")
        raise AssertionError(f"{script} did not become true: {self.problems} {text}")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so outside of the page."""
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < end, self.problems
            self.run("new Promise(done => setTimeout(done, 50))")

    @contextmanager
    def without_policy(self) -> Iterator[None]:
        """Let the pages that open meanwhile run scripts that are not theirs, such as axe."""
        self._call("Page.setBypassCSP", enabled=True)
        try:
            yield
        finally:
            self._call("Page.setBypassCSP", enabled=False)

    def faults(self) -> list[str]:
        """Return what axe finds against accessibility: the rule, the element, and why."""
        if not self.run("'axe' in window"):
            self.run(f"{AXE.read_text()}; null")
        found: list[str] = self.run(FAULTS)
        return found

    def let_copy(self, url: str) -> None:
        """Let the pages of a server write the clipboard, and read it."""
        wanted = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self._call("Browser.grantPermissions", origin=url, permissions=wanted)
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)  # else it reads none

    @contextmanager
    def held(self, pattern: str) -> Iterator[None]:
        """Hold back the requests to addresses of a pattern, such as ``*/api/live*``, meanwhile."""
        self._call("Fetch.enable", patterns=[{"urlPattern": pattern}])
        try:
            yield
        finally:
            self._call("Fetch.disable")  # they go on

    def save_to(self, folder: Path) -> None:
        """Keep what the page lets its user save in a folder."""
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def faint_texts(self) -> list[str]:
        """Return the texts in drawings whose contrast is below 4.5: axe looks at no drawing."""
        found: list[str] = self.run(FAINT)
        return found

    def press(self, key: str) -> None:
        """Press a key: a character, or a name such as Enter."""
        text, code = KEYS.get(key, (key if len(key) == 1 else "", 0))
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self._call("Input.dispatchKeyEvent", **down, **given)
        self._call("Input.dispatchKeyEvent", type="keyUp", **given)

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        for character in text:
            self.press(character)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Save a picture of the window, or of the whole page."""
        options: dict[str, Any] = {"captureBeyondViewport": whole}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {**size, "x": 0, "y": 0, "scale": 1}
        found = self._call("Page.captureScreenshot", format="png", **options)
        file.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                found: dict[str, Any] = answer["result"]
                return found
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, f"the browser ended with {self._process.poll()}"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        kind, given = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif kind == "Network.dataReceived":
            self.received_bytes += given["dataLength"]
        elif kind == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(given["exceptionDetails"])[:600])
        elif kind == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.problems.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")


@contextmanager
def browser_tab() -> Iterator[BrowserTab]:
    """Yield a tab of a new browser with a profile of its own; end the browser afterwards."""
    assert BROWSER is not None
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        start = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", start, BROWSER, f"--user-data-dir={profile}", *FLAGS],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield BrowserTab(process, commands, answers)
        finally:
            os.close(commands)  # the browser ends when its pipe does
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(answers)
