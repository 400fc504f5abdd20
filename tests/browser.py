"""A headless Chromium, driven as the WebDriver standard says, over HTTP and without a package for it."""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 60.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Space": " "}


def is_installed() -> bool:
    return all(shutil.which(name) for name in ("chromedriver", "chromium"))


@dataclass
class Browser:
    """One window."""

    _client: httpx.Client
    _session: str

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, f"/session/{self._session}/{path}", json=body)
        found = answer.json()["value"]
        assert answer.status_code == 200, found
        return found

    def open(self, url: str) -> None:
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: Any) -> Any:
        """What a script returns, as soon as that is something."""
        pause, until = threading.Event(), time.monotonic() + PATIENCE_S
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < until, f"{script} stayed {found!r}; the page says: {self.text()}"
            pause.wait(0.05)
        return found

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def keys(self, *names: str) -> None:
        """Presses keys, as a person does who has no mouse; texts are typed."""
        pressed = []
        for name in names:
            for key in KEYS.get(name) or name:
                pressed += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": pressed}]})

    def resize(self, width: int, height: int) -> None:
        self._ask("POST", "window/rect", {"width": width, "height": height})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "screenshot")))


@contextlib.contextmanager
def _driver() -> Iterator[int]:
    """Its port. The one that it was given for IPv4 may be another program's for IPv6: then it ends, and is begun again."""
    said = ""
    for _ in range(5):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                said += line
                if found := re.search(r"successfully on port (\d+)", line):
                    yield int(found[1])
                    return
        finally:
            driver.terminate()
            driver.wait()
            driver.stdout.close()
    raise AssertionError(f"chromedriver does not begin: {said}")


@contextlib.contextmanager
def browsing(profile: Path, width: int = 1200, height: int = 1400) -> Iterator[Browser]:
    with _driver() as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        options = {"args": [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]}
        wanted = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        answer = client.post("/session", json=wanted).json()["value"]
        session = answer["sessionId"]
        try:
            yield Browser(client, session)
        finally:
            client.delete(f"/session/{session}")
