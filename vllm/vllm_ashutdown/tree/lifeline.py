"""A child does not outlive its parent, whatever the parent died of.

The kernel itself kills: it is told to send SIGKILL when the other end of a connection
closes, and a process that is killed closes all its ends. So it also works for a child
that is stuck in native code with the interpreter's lock in its hand. Unlike the
parent-death signal it follows the parent process, not the thread that began the child.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket

_F_SETSIG = 10
"""Linux; Python's ``fcntl`` has no name for it in all its releases."""


def hang_on(connection: socket.socket) -> bool:
    """Lets this process die with the other end of ``connection``.

    Nobody may ever write to it: the kernel would take that for the same event.

    Returns:
        False where the kernel cannot do it.
    """
    if not hasattr(os, "O_ASYNC"):
        return False
    descriptor = connection.fileno()
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        return False
    if is_cut(connection):
        # It went before it was asked to tell; then it tells nothing any more.
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end is closed."""
    try:
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
        return connection.recv(1, flags) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
