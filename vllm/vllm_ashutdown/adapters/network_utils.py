"""vllm.utils.network_utils: names for sockets and stores get an owner."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..core.files import Kind, ledger

_KINDS = {"ipc": Kind.IPC_SOCKET, "file": Kind.STORE}


def make_named_file(original: Callable[[], str]) -> Callable[[], str]:
    """``get_open_zmq_ipc_path`` and ``get_file_store_init_method``."""

    @functools.wraps(original)
    def named_file() -> str:
        address = original()
        scheme, _, path = address.partition("://")
        if scheme in _KINDS and path.startswith("/"):
            ledger.remember(path, _KINDS[scheme])
        return address

    return named_file
