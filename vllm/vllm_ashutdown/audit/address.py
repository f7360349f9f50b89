"""Where a server answers, as its own command line says."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import httpx

DEFAULT_PORT = 8000
"""vLLM's, where the command names none."""

ANY = ("", "0.0.0.0", "::")  # noqa: S104 (compared with, never bound)


class CommandError(ValueError):
    """Raised when a command's own options cannot be understood."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers.

    Attributes:
        host: A name or an address of this machine.
        port: Its TCP port.
        uds: The path of the UNIX socket that it serves on instead, or empty.
        tls: It speaks TLS. Its certificate is not asked for: it is this machine's.
        key: The API key that it wants, or empty.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    uds: str = ""
    tls: bool = False
    key: str = ""

    @property
    def url(self) -> str:
        """The address as clients write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.uds}" if self.uds else self.url

    def client(self) -> httpx.Client:
        """An HTTP client for it, which waits as long as the server wants."""
        import httpx

        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            transport=httpx.HTTPTransport(
                uds=self.uds or None,
                verify=False,  # see `tls`
            ),
            timeout=None,  # noqa: S113 (how long it takes is what is looked at)
            trust_env=False,  # a proxy is not meant for this machine
        )


@dataclass(frozen=True, slots=True)
class Options:
    """What a command says that matters to whoever looks at its server.

    Attributes:
        address: Where it will answer.
        drain: Seconds that it lets requests run on, by its ``--shutdown-timeout``.
    """

    address: Address
    drain: float


def options_of(command: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Reads the options of a ``vllm serve`` out of ``command``; vLLM's others are left.

    Raises:
        CommandError: one of them makes no sense.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", default=DEFAULT_PORT, type=int)
    parser.add_argument("--uds", default="")
    parser.add_argument("--api-key", nargs="*")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--shutdown-timeout", default=0.0, type=float)
    found, _ = parser.parse_known_args([_dashed(word) for word in command])
    if math.isnan(found.shutdown_timeout) or found.shutdown_timeout < 0:
        raise CommandError("the command's --shutdown-timeout is no span of time")
    if not 0 < found.port < 1 << 16:
        raise CommandError(f"the command's --port {found.port} is no TCP port")
    keys = found.api_key or [environment.get("VLLM_API_KEY", "")]
    host = "127.0.0.1" if found.host in ANY else found.host
    address = Address(host, found.port, found.uds, bool(found.ssl_certfile), keys[0])
    return Options(address, found.shutdown_timeout)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"the command to audit: {message}")


def _dashed(word: str) -> str:
    """vLLM takes ``--api_key`` for ``--api-key``."""
    name, equals, value = word.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value
