"""A child process is reaped by one thread, and seen by all.

vLLM has two threads that look at a core as it leaves: the one that stops it and
a monitor. Whichever calls ``waitpid`` second is told that there is no such child.
``multiprocessing`` takes that for "not over yet", so until the first thread gets
the GIL back to write the exit code down, the second sees a live process, and kills
it: a process that left cleanly, under a pid that may be someone else's by now.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any


def reap_in_turn(process: Any) -> None:
    """Lets only one thread at a time ask for the exit code of ``process``.

    A call that would block waits without reaping first, so that nobody waits for
    the lock longer than a look takes.
    """
    popen = getattr(process, "_popen", None)
    if popen is None or not hasattr(os, "waitid"):
        return
    # Reentrant: a signal handler that kills may look while its thread looks.
    lock, look, pid = threading.RLock(), type(popen).poll, popen.pid
    # No more than that: in a circle with its own method it would keep its descriptors
    # until somebody collects garbage.
    it = weakref.ref(popen)

    def poll(flag: int = os.WNOHANG) -> int | None:
        if not flag & os.WNOHANG:
            with contextlib.suppress(ChildProcessError):  # reaped meanwhile
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with lock:
            one = it()  # somebody may have closed it meanwhile
            code: int | None = None if one is None else look(one, os.WNOHANG)
            return code

    popen.poll = poll
