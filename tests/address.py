"""Where a server answers: a TCP port, with TLS or without, or a UNIX socket."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

__all__ = ["HOST", "Address"]

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one server, for each kind of client.

    Attributes:
        port: The TCP port.
        uds: The path of the UNIX socket instead, if any.
        certificate: Of a server that speaks TLS: what proves that it is the one.
    """

    port: int
    uds: Path | None = None
    certificate: Path | None = None

    @property
    def url(self) -> str:
        """As clients want it; over a UNIX socket its host and port mean nothing."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{HOST}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        """What trusts this server, and no other."""
        if self.certificate is None:
            return None
        return ssl.create_default_context(cafile=self.certificate)

    def connection(self, seconds: float) -> HTTPConnection:
        """A connection that is not open yet; no answer may take longer than this."""
        if self.uds is not None:
            return _UnixConnection(self.uds, seconds)
        context = self.tls()
        if context is not None:
            return HTTPSConnection(HOST, self.port, timeout=seconds, context=context)
        return HTTPConnection(HOST, self.port, timeout=seconds)


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(HOST, timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
