"""The shapes that one server can have on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ONE", "TOPOLOGIES", "Topology"]

# Each worker has a core of its own. Without this vLLM gives every one of them the same.
_TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@dataclass(frozen=True, slots=True)
class Topology:
    """One shape.

    Attributes:
        options: For ``serve``.
        environment: On top of what every server gets.
        api_servers: How many there are. With more than one they are children of a
            process that only launches.
        cores: How many engine cores there are.
        workers: How many workers they have together.
        uds: It listens on a UNIX socket.
        tls: It speaks TLS.
    """

    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    api_servers: int = 1
    cores: int = 1
    workers: int = 1
    uds: bool = False
    tls: bool = False

    @property
    def kinds(self) -> dict[str, int]:
        """How many processes of each kind it has."""
        kinds = {
            "launcher": int(self.api_servers > 1),
            "APIServer": self.api_servers,
            "EngineCore": self.cores,
            "Worker": self.workers,
            "Coordinator": int(self.cores > 1),
        }
        return {kind: count for kind, count in kinds.items() if count}

    @property
    def processes(self) -> int:
        """How many processes of vLLM's it has."""
        return sum(self.kinds.values())


ONE = Topology()
"""One API server, one core, one worker."""

TOPOLOGIES: dict[str, Topology] = {
    "one": ONE,
    "tp2": Topology(
        options=("--tensor-parallel-size", "2"),
        environment=_TWO_WORKERS,
        workers=2,
    ),
    # Said outright: vLLM would start an API server for each core.
    "dp2": Topology(
        options=("--data-parallel-size", "2", "--api-server-count", "1"),
        environment=_TWO_WORKERS,
        cores=2,
        workers=2,
    ),
    "api2": Topology(options=("--api-server-count", "2"), api_servers=2),
    "api4": Topology(options=("--api-server-count", "4"), api_servers=4),
    "dp2_api2": Topology(
        options=("--data-parallel-size", "2", "--api-server-count", "2"),
        environment=_TWO_WORKERS,
        api_servers=2,
        cores=2,
        workers=2,
    ),
    "uds": Topology(uds=True),
    "tls": Topology(tls=True),
}
"""Every shape that the tests stop, by its name."""
