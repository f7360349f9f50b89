"""vllm.entrypoints.openai.api_server: the socket file of ``--uds`` gets an owner.

Since 0.29 the function stands in the launcher, and this module only names it. Nobody
in vLLM removes the file, and the next server cannot bind its path while it is there.
"""

from __future__ import annotations

import functools
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from ..core.files import Kind, ledger
from ..reclaiming import reclaim_once
from ..tree import child


def make_create_server_unix_socket(
    original: Callable[[str], socket.socket],
) -> Callable[[str], socket.socket]:
    """``create_server_unix_socket``."""

    @functools.wraps(original)
    def create_server_unix_socket(path: str) -> socket.socket:
        # It fails where anything is: what is there afterwards is ours. And what a
        # server has left that was killed must go before.
        if child.current() is None:
            reclaim_once()
        server = original(path)
        if not path.startswith("\0"):
            file = str(Path(path).absolute())
            ledger.remember(file, Kind.SOCKET_FILE)
            # A program that goes on after its server has no use for it either. At
            # the process's end, with the server closed, the ledger sees to it.
            weakref.finalize(server, ledger.remove, [file]).atexit = False
        return server

    return create_server_unix_socket
