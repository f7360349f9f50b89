"""Runs a command as a container's runtime does: as PID 1 of its own namespace.

    python container.py [--init] COMMAND...

Signals are passed on to it, and its exit code is this program's. With ``--init`` a
small PID 1 stands above the command, as with docker's option of that name: it passes
signals on too, and reaps whatever the namespace orphans.

To PID 1 of a namespace the kernel delivers no signal that it has no handler for, and
when it ends all others in there are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil

OPTION = "--init"
AS_INIT = "--as-init"

NAMESPACE = (
    *("unshare", "--user", "--map-root-user"),
    *("--pid", "--fork", "--mount-proc", "--kill-child", "--"),
)
"""util-linux's, whose only child is PID 1."""


def is_possible() -> bool:
    """Whether this machine lets this user make such a namespace."""
    try:
        made = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    except OSError:
        return False
    return made.returncode == 0


def command(*words: str, init: bool) -> tuple[str, ...]:
    """What runs ``words`` in a namespace, from the root of this checkout."""
    return (sys.executable, "-m", __name__, *([OPTION] if init else []), *words)


def _run(words: list[str]) -> int:
    if words[0] == OPTION:
        words = [sys.executable, __file__, AS_INIT, *words[1:]]
    # Nobody below may hear a signal before there is somebody to pass it on to.
    _block()
    runtime = _begin([*NAMESPACE, *words])
    process = psutil.Process(runtime.pid)

    def pass_on(number: int) -> None:
        for first in process.children():
            first.send_signal(number)

    _handle(pass_on)
    return runtime.wait()


def _be_init(words: list[str]) -> int:
    """Passes signals on, and reaps until the command itself is over."""
    _block()
    main = _begin(words)
    # Popen's own method looks first, and would reap what is waited for here.
    _handle(lambda number: os.kill(main.pid, number))
    while True:
        pid, status = os.wait()
        if pid == main.pid:
            return os.waitstatus_to_exitcode(status)


def _begin(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, preexec_fn=_unblock)  # noqa: PLW1509 (no threads)


def _handle(pass_on: Callable[[int], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: pass_on(number))
    _unblock()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))


if __name__ == "__main__":
    if sys.argv[1] == AS_INIT:
        sys.exit(_be_init(sys.argv[2:]))
    sys.exit(_run(sys.argv[1:]))
