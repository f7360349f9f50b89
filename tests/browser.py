"""A real browser without a screen, and everything that a page makes it do.

Chromium is told over a pair of pipes, in its DevTools protocol: no port, no driver, and
each thing to wait for is a message.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

SECONDS = 60.0
"""Until a browser that says nothing is killed."""

_OPTIONS = (
    "--headless",
    "--no-sandbox",  # the tests may be root's, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def executable() -> str | None:
    """Where a browser is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


_COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")


@dataclass
class Seen:
    """What came of one page.

    Attributes:
        complaints: What its console got: errors, warnings, whatever a script threw.
        requests: Every address that was asked for.
        width: How wide its content is, in CSS pixels.
    """

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    width: int = 0


class Browser:
    """One browser. Made by :func:`browser`."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    _session: str | None = None

    def open(self, path: Path, width: int, height: int = 900, scheme: str = "") -> Seen:
        """Opens a page and waits until it is there whole.

        Args:
            path: The page.
            width: Of the screen, in CSS pixels.
            height: The same.
            scheme: ``light`` or ``dark``: what the reader prefers.
        """
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        wish = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[wish])
        self._events.clear()
        self._call("Page.navigate", url=path.as_uri())
        self._until("Page.loadEventFired")
        seen = Seen(width=self.ask("document.documentElement.scrollWidth"))
        for event in self._events:
            parameters = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(parameters["request"]["url"])
            elif event["method"] in _COMPLAINTS:
                seen.complaints.append(json.dumps(parameters))
        return seen

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page, as PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method}
        message["params"] = parameters
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _until(self, method: str) -> None:
        while all(event["method"] != method for event in self._events):
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (one := self._answers.read(1)) != b"\0":
            assert one, "the browser has gone"
            text += one
        message: dict[str, Any] = json.loads(text)
        return message

    def close(self) -> None:
        """Lets go of it; it leaves."""
        self._commands.close()
        self._answers.close()


@contextlib.contextmanager
def browser(program: str) -> Iterator[Browser]:
    """Runs ``program`` and gives the browser that it is; gone afterwards."""
    # Chromium reads from descriptor 3 and writes to 4: ours are kept out of their way.
    here, there = os.pipe(), os.pipe()
    commands, answers = (_high(here[0]), here[1]), (there[0], _high(there[1]))
    with tempfile.TemporaryDirectory(
        prefix="browser-", ignore_cleanup_errors=True
    ) as home:
        pid = os.posix_spawn(
            program,
            [program, *_OPTIONS, f"--user-data-dir={home}", "about:blank"],
            {**os.environ, "HOME": home},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, commands[0], 3),
                (os.POSIX_SPAWN_DUP2, answers[1], 4),
            ],
            setpgroup=0,
        )
        os.close(commands[0])
        os.close(answers[1])
        # Whoever waits for its answer is woken by the end of the pipe.
        timer = threading.Timer(SECONDS, os.kill, (pid, 9))
        timer.start()
        try:
            one = Browser(commands[1], answers[0])
            try:
                yield one
            finally:
                one.close()
        finally:
            timer.cancel()
            timer.join()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, 9)
            os.waitpid(pid, 0)


def _high(descriptor: int) -> int:
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
