"""Sockets that still listen, and so keep the next server from its address."""

from __future__ import annotations

import ipaddress
import os

from .listeners import Address, listeners
from .probe import Probe
from .view import View


def _listening(view: View) -> frozenset[str]:
    owned = view.owned
    items = {f"unix:{path}" for path in owned.uds if os.path.lexists(path)}
    if not view.living and not owned.ports:
        return frozenset(items)
    found = listeners()
    for process in view.living:
        addresses = _held(view, process.pid, found)
        items |= {f"{address} of {process}" for address in addresses}
    # The host program may serve other things from here.
    ours = {
        inode: address
        for inode, address in found.items()
        if any(_fits(address, host, port) for host, port in owned.ports)
    }
    if ours:
        items |= set(map(str, _held(view, os.getpid(), ours)))
    return frozenset(items)


def _held(view: View, pid: int, found: dict[int, Address]) -> list[Address]:
    links = set(view.links(pid).values())
    return [found[inode] for inode in found if f"socket:[{inode}]" in links]


def _fits(address: Address, host: str, port: int) -> bool:
    if address.port != port:
        return False
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return True  # a name; to look it up may take seconds
    return wanted.is_unspecified or wanted == ipaddress.ip_address(address.host)


LISTENING = Probe(
    row="listening sockets",
    what="TCP and UNIX sockets of HTTP and of process groups",
    noun="socket",
    state="still listens",
    look=_listening,
)
