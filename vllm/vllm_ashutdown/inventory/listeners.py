"""Which TCP sockets listen, and which inode each one has.

The kernel is asked for just these, by sock_diag(7), as ``ss`` does it. /proc/net/tcp
has them too, but to read it is to walk the table of all connections: milliseconds on
an idle machine, more on a busy one. It is for kernels that answer no such question.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from . import view

_SOCK_DIAG, _BY_FAMILY = 4, 20  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY
_REQUEST, _DUMP = 0x1, 0x300  # NLM_F_REQUEST, NLM_F_DUMP
_ERROR, _DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
_LISTEN = 10  # TCP_LISTEN
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, number, port
_SECONDS = 0.5
"""The most that the kernel gets for a part of its answer, which it has at once."""


class Address(NamedTuple):
    """Where a socket listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def listeners() -> dict[int, Address]:
    """All listening TCP sockets of this network namespace, by their inodes.

    Empty where the system is no Linux.
    """
    if sys.platform != "linux":
        return {}
    try:
        found = [*_ask(socket.AF_INET), *_ask(socket.AF_INET6)]
    except OSError:  # a sandbox without netlink, a kernel without inet_diag
        found = [*_read("tcp"), *_read("tcp6")]
    return dict(found)


def _ask(family: int) -> Iterator[tuple[int, Address]]:
    if sys.platform != "linux":
        return
    # inet_diag_req_v2: of all its fields only family, protocol and states are set.
    body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
    size = _HEADER.size + len(body)
    head = _HEADER.pack(size, _BY_FAMILY, _REQUEST | _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_SECONDS)
        netlink.sendto(head + body, (0, 0))
        while True:
            data, at = netlink.recv(1 << 16), 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                    raise OSError(-code, "sock_diag")
                yield _socket(data[at + _HEADER.size : at + length])
                at += (length + 3) & ~3


def _socket(message: bytes) -> tuple[int, Address]:
    # inet_diag_msg: family, 3 bytes, local port, 2 bytes, local address, ..., inode.
    (port,) = struct.unpack_from("!H", message, 4)
    (inode,) = struct.unpack_from("=I", message, 68)
    family = message[0]
    size = 4 if family == socket.AF_INET else 16
    return inode, Address(socket.inet_ntop(family, message[8 : 8 + size]), port)


def _read(name: str) -> Iterator[tuple[int, Address]]:
    """The same from /proc/net/tcp or tcp6; see proc_net(5)."""
    try:
        lines = (view.PROC / "net" / name).read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        _, local, _, state, *rest = line.split()
        if int(state, 16) != _LISTEN:
            continue
        host, _, port = local.partition(":")
        # Numbers in the machine's own order, whose memory is the address.
        words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
        packed = struct.pack(f"={len(words)}I", *words)
        family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
        address = Address(socket.inet_ntop(family, packed), int(port, 16))
        yield int(rest[5]), address
