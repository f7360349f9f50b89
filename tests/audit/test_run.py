"""Whole audits of a small server: clean ones, and one for each thing gone wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests import fake_server
from tests.programs import ROOT
from tests.reports import a_report
from vllm_ashutdown.audit.address import options_of
from vllm_ashutdown.audit.plan import How, Plan, Whom
from vllm_ashutdown.audit.run import Audience, Run, audit
from vllm_ashutdown.audit.server import ServerFailedError, free_port
from vllm_ashutdown.audit.streams import End, Stream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

PROGRAM = str(Path(fake_server.__file__))
CLEAN = a_report().to_json()


class Quiet:
    """Nobody looks."""

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        yield lambda words: None

    @contextlib.contextmanager
    def following(self, text: str, streams: Sequence[Stream]) -> Iterator[None]:
        yield


QUIET = Quiet()


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Audits the small server with these options of its own."""

    def seen(
        *options: str,
        stock: bool = False,
        audience: Audience = QUIET,
        **plan: object,
    ) -> Run:
        command = [sys.executable, PROGRAM, "--port", str(free_port())]
        command += ["--report", CLEAN, *options]
        found = options_of(command, {})
        # A UNIX socket's path is short.
        with tempfile.TemporaryDirectory(prefix="audit-", dir="/tmp") as short:
            directory = Path(short) / "tmp"
            directory.mkdir()
            values = {
                "streams": 3,
                "limit": 30.0,
                "start_limit": 60.0,
                # This checkout's package, also where another one is installed.
                "environment": {"PYTHONPATH": str(ROOT / "vllm")},
            } | plan
            run = audit(
                Plan(command, drain=found.drain, **values),  # type: ignore[arg-type]
                found.address,
                directory,
                audience,
                stock=stock,
            )
        assert not left_over(), "nothing of it stays, however it ended"
        return run

    yield seen
    for path in Path("/dev/shm").glob(f"*{fake_server.MEMORY}*"):
        path.unlink()


def left_over() -> list[psutil.Process]:
    """What has outlived its audit; no longer than to be told of here."""
    found = list(processes())
    for process in found:
        process.kill()
    return found


def processes() -> Iterator[psutil.Process]:
    mark = b"ASHUTDOWN_AUDIT="
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            command = process.cmdline()
            if mark in environ and (
                PROGRAM in command or fake_server._SLEEP in command[-1:]
            ):
                yield process


def broken(run: Run) -> list[str]:
    return [check.promise for check in run.checks if not check.kept]


def row(run: Run, name: str) -> tuple[int, int, int]:
    (found,) = [one for one in run.rows if one.name == name]
    return len(found.before), len(found.during), len(found.after)


# -- as it should be ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "whom"),
    [(How.TERM, Whom.TOP), (How.INT, Whom.GROUP), (How.TERM_TWICE, Whom.TOP)],
)
def test_a_good_stop_is_clean(seen, how, whom):
    run = seen(how=how, whom=whom)
    assert broken(run) == []
    assert run.clean
    assert run.exit_code == 0
    assert [stream.end for stream in run.streams] == [End.ENDED] * 3
    assert all(stream.retryable and stream.tokens >= 4 for stream in run.streams)
    assert row(run, "processes") == (0, 1, 0)
    assert row(run, "listening sockets") == (0, 1, 0)
    assert row(run, "address") == (0, 1, 0)
    times = run.times
    assert times.first_stream is not None
    assert 0 < times.first_stream <= times.last_stream <= times.exit <= times.gone < 5


def test_a_drain_lets_them_come_to_their_end(seen):
    run = seen("--shutdown-timeout", "30", "--length", "164")  # 100, and the prompt's
    assert broken(run) == []
    assert [(one.end, one.tokens) for one in run.streams] == [(End.COMPLETED, 100)] * 3


def test_a_kill_leaves_nobody_to_answer(seen):
    run = seen(how=How.KILL)
    assert broken(run) == []
    assert run.exit_code == -signal.SIGKILL
    assert [stream.end for stream in run.streams] == [End.CUT] * 3


def test_its_own_report_is_read_and_streams_need_not_be(seen):
    run = seen(streams=0)
    assert broken(run) == []
    assert run.report == a_report()
    assert run.streams == ()


def test_one_that_wants_a_key_gets_it(seen):
    run = seen("--api-key", "secret")
    assert broken(run) == []


def test_at_an_instant_of_the_start(seen):
    run = seen("--never-ready", at=0.5)
    assert broken(run) == []
    assert (run.ready_after, run.streams, run.exit_code) == (None, (), 0)


def test_before_a_program_has_handlers_a_signal_may_end_it(seen):
    run = seen(at=0.0)
    assert broken(run) == []
    # It has them sooner where the machine lets it.
    assert run.exit_code in (-signal.SIGTERM, 0)


# -- one thing wrong ---------------------------------------------------------------


UNTRUE = {"exit code tells the truth", "its own report is true"}
"""What else is wrong then: it said 0, and that all was well."""

LIES = {"none ends like a success though cut", "each was told how it ended"}
PORT = {"its address is free", "no listening sockets left", "no processes left"}


@pytest.mark.parametrize(
    ("faults", "promises"),
    [
        (["lie"], LIES | UNTRUE),
        (["lie-about-length"], LIES | UNTRUE),
        (["cut"], {"each was told how it ended"} | UNTRUE),
        (["not-retryable"], {"those that were ended may be retried"} | UNTRUE),
        (["exit-code"], {"exit code says that it was asked to"}),
        (["leak-process"], {"no processes left"} | UNTRUE),
        (["leak-daemon"], {"no processes left"} | UNTRUE),
        (["leak-port"], PORT | UNTRUE),
        (["leak-memory", "leak-mapped-memory"], {"no shared memory left"} | UNTRUE),
        (
            ["leak-semaphore", "leak-socket"],
            {"no semaphores left", "no socket files left"} | UNTRUE,
        ),
        (["leak-file", "leak-directory"], {"no temporary files left"} | UNTRUE),
    ],
)
def test_each_fault_turns_the_verdict_and_only_its_own_row(
    seen, monkeypatch, faults, promises
):
    monkeypatch.setattr("vllm_ashutdown.audit.run.GONE_SECONDS", 0.1)
    run = seen(*(word for fault in faults for word in ("--fault", fault)))
    assert set(broken(run)) == promises
    assert not run.clean
    if faults[0].startswith("leak") and len(promises) < 5:
        assert sum(len(row.after) for row in run.rows) == len(faults), "each by itself"


def test_of_what_a_kill_leaves_the_next_start_takes_what_is_listed(seen):
    run = seen("--fault", "leak-listed-file", how=How.KILL)
    assert broken(run) == []
    assert [name.rpartition("/")[2] for name in run.reclaimed] == ["listed"]
    run = seen("--fault", "leak-file", how=How.KILL)
    assert broken(run) == ["no temporary files left"]
    assert run.reclaimed == ()


@pytest.mark.parametrize("fault", ["hang", "silent"])
def test_one_that_hangs_is_bounded_and_killed(seen, fault):
    run = seen("--fault", fault, limit=0.3)
    assert run.exit_code is None
    assert (run.times.exit, run.times.gone) == (None, None)
    assert "the server ends" in broken(run)
    ends = [stream.end for stream in run.streams]
    if fault == "silent":
        assert ends == [End.OPEN] * 3
        assert "no stream waits for ever" in broken(run)
    else:
        assert ends == [End.ENDED] * 3


def test_a_report_that_is_not_clean(seen):
    dirty = a_report(leftovers=("process X is alive",))
    run = seen("--report", dirty.to_json())
    assert broken(run) == ["its own report is clean"]


@pytest.mark.parametrize("text", ["{}", ""])
def test_a_report_that_is_none(seen, text):
    assert broken(seen("--report", text)) == ["its own report is clean"]


def test_stock_writes_none_and_need_not(seen):
    assert broken(seen("--report", "", stock=True)) == []


# -- what cannot be audited --------------------------------------------------------


def test_a_server_that_ends_by_itself(seen):
    with pytest.raises(ServerFailedError, match="exit code 2") as caught:
        seen("--no-such-option")
    assert "unrecognized arguments" in "\n".join(caught.value.lines)


def test_a_server_that_never_serves(seen):
    with pytest.raises(ServerFailedError, match="not ready after 0 s"):
        seen("--never-ready", start_limit=0.2)


def test_an_address_that_is_taken(tmp_path):
    port = free_port()
    command = [sys.executable, PROGRAM, "--port", str(port)]
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ServerFailedError, match=f"{port} answers, and the server"),
    ):
        audit(Plan(command), options_of(command, {}).address, tmp_path, Quiet())


def test_a_program_that_is_not_there(tmp_path):
    address = options_of(["--port", str(free_port())], {}).address
    with pytest.raises(
        ServerFailedError, match=r"no-such-program: No such file.*; give its path"
    ):
        audit(Plan(["no-such-program"]), address, tmp_path, Quiet())


@pytest.mark.parametrize("at", ["its first word", "its beginning", "its way"])
def test_an_interrupted_audit_leaves_no_server(seen, monkeypatch, at):
    """Result: nothing, also where the process has begun and has no name yet."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def begin(*args: object, **more: object) -> subprocess.Popen[str]:
        process = popen(*args, **more)
        if at == "its beginning":
            interrupt()
        elif at == "its way":
            threading.Timer(0.3, interrupt).start()
        return process

    class Hears(Quiet):
        @contextlib.contextmanager
        def working(self, text: str) -> Iterator[Callable[[str], None]]:
            yield lambda words: interrupt() if at == "its first word" else None

    popen = subprocess.Popen
    monkeypatch.setattr("vllm_ashutdown.audit.server.subprocess.Popen", begin)
    with pytest.raises(KeyboardInterrupt):
        seen("--never-ready", audience=Hears())
    assert not left_over()
