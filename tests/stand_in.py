"""A tree of processes like a server's, with no vLLM in it: it starts in a second.

    python stand_in.py serve --api-server-count 2 --data-parallel-size 2

What is real: the processes, their signals, what each makes under a name, and all of the
package that a tree of several API servers goes through: its start, the launcher's wait,
the order, the lifelines, the lists for the next start. What is not: models, requests,
HTTP. For campaigns of many runs, beside a few on real vLLM.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import setproctitle

from tests.server import READY, Server
from tests.topologies import Topology
from vllm_ashutdown.adapters import launching
from vllm_ashutdown.core.files import Kind, ledger, memory_path, semaphore_path
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.report import RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.process_exit import run_and_leave
from vllm_ashutdown.starting import start
from vllm_ashutdown.tree import child
from vllm_ashutdown.tree.ending import end
from vllm_ashutdown.tree.entry import Entry
from vllm_ashutdown.tree.part import Part
from vllm_ashutdown.tree.place import home, take_in

__all__ = ["SHAPES", "StandIn"]

SHAPES: dict[str, Topology] = {
    "api2": Topology(options=("--api-server-count", "2"), api_servers=2),
    "tp2": Topology(
        options=("--api-server-count", "2", "--tensor-parallel-size", "2"),
        api_servers=2,
        workers=2,
    ),
    "dp2": Topology(
        options=("--api-server-count", "2", "--data-parallel-size", "2"),
        api_servers=2,
        cores=2,
        workers=2,
    ),
}
"""Those that have a launcher: what is above a single API server needs vLLM's own."""

STEP_SECONDS = 0.1
"""The most that one step of a start takes; each process has a few."""

STREAM_SECONDS = 1.5
"""What the requests of an API server last at most, once it is told to drain."""


_PROGRAM = """
from vllm_ashutdown.starting import start
start.watch()  # as soon as the package is loaded, which plugins are first of all

from tests.stand_in import main
main()
"""


class StandIn(Server):
    """The same harness around it.

    Args:
        directory: As for a server.
        options: As for a server.
        before: The words of a command that runs it.
        more: As for a server.
    """

    def __init__(
        self, directory: Path, *options: str, before: Sequence[str] = (), **more: Any
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # Only what is called vllm is a server from its first line to its last.
        program = directory / "vllm"
        program.write_text(_PROGRAM)
        super().__init__(
            directory, *options, command=(*before, sys.executable, str(program)), **more
        )

    def _until_ready(self) -> None:
        up = self.wait_for(READY, 20.0, self.topology.api_servers)
        # A real server's cores have all of their workers before anyone serves.
        if not up or not self.wait_for("is up", 20.0, self.topology.workers):
            raise RuntimeError(f"the stand-in did not start:\n{self._tail()}")
        self.watch.look()


# -- what is in each of its processes ------------------------------------------


def main() -> None:
    """The top process: the start, and then the launcher's wait."""
    format_ = f"%(levelname)s {os.getpid()} %(message)s"
    logging.basicConfig(level=logging.INFO, format=format_, stream=sys.stdout)
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    options, _ = parser.parse_known_args()
    run_and_leave(start.run, lambda: _launch(options))


def _launch(options: argparse.Namespace) -> None:
    _step()
    _make(_temporary("store"), Kind.STORE)
    start.reached("engine cores and API servers start")
    cores = [
        _begin(_core, Part.CORE, f"EngineCore_DP{rank}", options.tensor_parallel_size)
        for rank in range(options.data_parallel_size)
    ]
    coordinators = []
    if options.data_parallel_size > 1:
        coordinators = [_begin(_coordinator, Part.COORDINATOR, "DPCoordinator")]
    servers = [
        _begin(_server, Part.SERVER, f"APIServer_{rank}")
        for rank in range(options.api_server_count)
    ]
    processes = [*cores, *coordinators, *servers]
    launching.serve(
        lambda: _watch(processes),
        SimpleNamespace(processes=servers, sock=None, args=options),
        SimpleNamespace(processes=cores),
        SimpleNamespace(proc=coordinators[0]) if coordinators else None,
    )


def _watch(processes: Sequence[Any]) -> None:
    """Waits like vLLM's launcher: until one of them has ended."""
    from multiprocessing.connection import wait

    gone = wait([process.sentinel for process in processes])
    names = [one.name for one in processes if one.sentinel in gone]
    raise RuntimeError(f"{', '.join(names)} died")


def _begin(run: Callable[..., None], part: Part, name: str, *args: Any) -> Any:
    home()
    with start.whole():
        process = get_context("fork").Process(
            target=Entry(run), args=args, name=name, daemon=part is not Part.CORE
        )
        process.start()
        take_in([process], part)
    return process


def _titled(run: Callable[..., None]) -> Callable[..., None]:
    def titled(*args: Any) -> None:
        own = get_context("fork").current_process()
        setproctitle.setproctitle(f"VLLM::{own.name}")
        run_and_leave(run, *args)

    return titled


@_titled
def _core(workers: int) -> None:
    begun: list[Any] = []
    pid = os.getpid()

    def leave(number: int, frame: object) -> None:
        if os.getpid() != pid:
            os._exit(0)  # a worker that was forked, and has no handler of its own yet
        allowance = _tie().allowance
        left = 2.0 if allowance is None else allowance.left()
        end(begun, left * 0.6)
        raise SystemExit(0)

    _step()
    _make(_temporary("ipc"), Kind.IPC_SOCKET)
    _make(memory_path(_name("psm_")), Kind.SHARED_MEMORY)
    _make(semaphore_path(_name("mp-")), Kind.SEMAPHORE)
    for number in child.SIGNALS:
        _tie().means(number, leave)
    for rank in range(workers):
        begun += [_begin(_worker, Part.WORKER, f"Worker_TP{rank}")]
    try:
        _watch(begun)
    finally:
        end(begun, 0.0)  # as vLLM's executor does when one of them has died


@_titled
def _worker() -> None:
    _leave_when_told()
    _step()
    _make(memory_path(_name("psm_")), Kind.SHARED_MEMORY)
    _say(f"{get_context('fork').current_process().name} is up")
    _sleep()


@_titled
def _coordinator() -> None:
    _leave_when_told()
    _make(_temporary("ipc"), Kind.IPC_SOCKET)
    _sleep()


@_titled
def _server() -> None:
    words: list[Any] = []
    news = threading.Condition()

    def told(message: Any) -> None:
        with news:
            words.append(message)
            news.notify_all()

    _step()
    _make(_temporary("http"), Kind.SOCKET_FILE)
    _tie().on_stop(told)
    _say(READY)
    began = 0.0
    with news:
        news.wait_for(lambda: words)
        began = time.monotonic()
        longest = random.uniform(0, STREAM_SECONDS)
        drain = min(longest, float(words[0]["drain"]))
        whole = not news.wait_for(lambda: len(words) > 1, drain)
    report = ShutdownReport(
        trigger=Trigger.parse(words[0]["trigger"]),
        mode=Mode.parse(words[0]["mode"]),
        final_mode=Mode.parse(words[-1]["mode"]),
        seconds=time.monotonic() - began,
        phases=(),
        requests=RequestCounts(int(whole), int(not whole), 0),
    )
    _tie().send({"is": "report", "report": report.to_json()})


def _say(line: str) -> None:
    """In one piece: others write there, too."""
    os.write(1, f"{line}\n".encode())


def _leave_when_told() -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    for number in child.SIGNALS:
        _tie().means(number, leave)


def _tie() -> child.Child:
    tie = child.current()
    assert tie is not None
    return tie


def _step() -> None:
    """Something that takes its time, as much as there is."""
    time.sleep(random.uniform(0, STEP_SECONDS))


def _sleep() -> None:
    while True:
        signal.pause()


def _make(path: str, kind: Kind) -> None:
    """Makes something under a name; noted first, as what vLLM makes is."""
    ledger.remember(path, kind)
    if kind in (Kind.IPC_SOCKET, Kind.SOCKET_FILE):
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        _open.append(listening)
    else:
        Path(path).touch()


_open: list[socket.socket] = []


def _name(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


def _temporary(prefix: str) -> str:
    return str(Path(tempfile.gettempdir(), _name(f"{prefix}-")))
