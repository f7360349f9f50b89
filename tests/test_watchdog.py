"""It bites what does not end, says why, and lets everything else alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.life import FULL, HEAD
from tests.programs import ROOT
from vllm_ashutdown.exit_code import ExitCode

STOP = """
import logging
from vllm_ashutdown import watchdog
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.process_exit import fast_exit, will_leave_fast

logging.basicConfig(format="%(message)s")
watchdog.MARGIN_SECONDS = watchdog.LOCKED_SECONDS = 0.2

def stop(seconds=0.3, mode=Mode.ABORT, drain=0.0):
    made = Stop(mode, Budget.arm(drain, seconds), Trigger.call("a test"))
    watchdog.Watchdog(made, lambda: home().children(Part.CORE) if home() else []).arm()
    return made

def stuck():
    threading.Event().wait()
"""

NATIVE = """
import ctypes
begin(deaf)
stop()
say("ready")
ctypes.{library}(None).pause()
"""


def test_a_step_that_never_returns_is_ended_and_everything_with_it(program, tmp_path):
    made = tmp_path / "made"
    one = program(f"""{STOP}
will_leave_fast()
begin(deaf)
open({str(made)!r}, "w").close()
ledger.remember({str(made)!r})
stop()
say("ready")
stuck()
""")
    child = one.child()
    one.hears("ready")
    one.at = time.monotonic()
    code, _, err = one.over()
    assert code == ExitCode.WATCHDOG
    assert 0.3 < one.seconds < 2
    assert "the stop (call a test) did not end in its time" in err
    assert f"code {ExitCode.WATCHDOG:d}" in err
    assert "in stuck" in err, "what the main thread was at"
    assert not child.alive
    assert not made.exists()


@pytest.mark.parametrize(
    ("library", "code"),
    [("CDLL", ExitCode.WATCHDOG), ("PyDLL", 1)],
    ids=["lets go of the lock", "holds the lock"],
)
def test_native_code_is_no_shelter(program, library, code):
    one = program(f"{STOP}\nwill_leave_fast()\n{NATIVE.format(library=library)}")
    child = one.child()
    one.hears("ready")
    one.at = time.monotonic()
    found, _, err = one.over()
    assert found == code
    assert one.seconds < 3
    assert "(most recent call first)" in err
    assert child.gone_within(1)


def test_a_log_that_nobody_reads_is_no_shelter(program):
    one = program(f"""{STOP}
{FULL}
watchdog.LOCKED_SECONDS = 30
will_leave_fast()
begin(deaf)
stop()
say("ready")
stuck()
""")
    child = one.child()
    one.hears("ready")
    one.at = time.monotonic()
    assert one.over()[0] == ExitCode.WATCHDOG
    assert one.seconds < 4
    assert not child.alive


def test_a_stop_that_is_raised_is_bitten_sooner(program):
    one = program(f"""{STOP}
will_leave_fast()
made = stop(60.0, Mode.DRAIN, float("inf"))
say("ready")
made.raise_to(Mode.KILL, Trigger.call("a second"))
made.budget = made.budget.raised_to(Mode.KILL)
stuck()
""")
    one.hears("ready")
    one.at = time.monotonic()
    code, _, _ = one.over()
    assert code == ExitCode.WATCHDOG
    assert 1.5 < one.seconds < 4


def test_one_that_ends_in_its_time_is_let_alone(program):
    one = program(f"""{STOP}
will_leave_fast()
stop(1.0).finish()
time.sleep(0.5)
say("over")
fast_exit(3)
""")
    one.at = time.monotonic()
    assert one.over() == (3, "over\n", "")


def test_without_a_thread_for_it_the_stop_goes_on(program):
    one = program(f"""{STOP}
will_leave_fast()
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
stop()
fast_exit(3)
""")
    one.at = time.monotonic()
    said = "[shutdown] there is no watchdog: can't start new thread\n"
    assert one.over() == (3, "", said)


def test_a_drain_without_limit_has_no_deadline(program):
    one = program(f"""{STOP}
will_leave_fast()
stop(0.1, Mode.DRAIN, float("inf"))
time.sleep(1)
fast_exit(3)
""")
    one.at = time.monotonic()
    assert one.over() == (3, "", "")


def test_a_drain_that_is_over_gives_no_time_to_what_comes_behind(program):
    one = program(f"""{STOP}
will_leave_fast()
stop(0.3, Mode.DRAIN, 60.0).drained()
say("ready")
stuck()
""")
    one.hears("ready")
    one.at = time.monotonic()
    assert one.over()[0] == ExitCode.WATCHDOG
    assert one.seconds < 2


LOOP = f"""{STOP}
import asyncio, ctypes, uvloop
watchdog.MARGIN_SECONDS = 0.2

def hold():  # in native code that no signal interrupts: a mutex is taken twice
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

def serve(new_loop, serving, seconds=0.3):
    will_leave_fast()
    async def main():
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set)
        watch = watchdog.SignalWatch(seconds, lambda: home().children(Part.CORE))
        watch.begin()
        await serving(heard, watch)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    fast_exit(3)
"""

LOOPS = pytest.mark.parametrize(
    "loop", ["asyncio.new_event_loop", "uvloop.new_event_loop"]
)


@LOOPS
@pytest.mark.parametrize("held", ["hold()", "time.sleep(60)"])
def test_a_loop_that_is_held_before_the_signal_comes_is_no_shelter(program, loop, held):
    one = program(f"""{LOOP}
begin(deaf)
async def serving(heard, watch):
    say("ready")
    {held}
serve({loop}, serving)
""")
    child = one.child()
    one.hears("ready")
    one.signal()
    code, _, err = one.over()
    assert code == ExitCode.WATCHDOG
    assert 0.3 < one.seconds < 3
    assert "the event loop has not answered a signal" in err
    assert "in serving" in err, "what held it"
    assert not child.alive


@LOOPS
def test_a_loop_that_answers_hears_of_every_signal_and_is_let_alone(program, loop):
    one = program(f"""{LOOP}
async def serving(heard, watch):
    for _ in range(20):
        say("ready")
        await heard.wait()
        heard.clear()
        watch.answered()
    await asyncio.sleep(1)
    say("over")
serve({loop}, serving)
""")
    for _ in range(20):
        one.hears("ready")
        one.signal()
    assert one.over() == (3, "over\n", "")


@LOOPS
def test_a_signal_for_somebody_else_is_no_stop(program, loop):
    one = program(f"""{LOOP}
async def serving(heard, watch):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    say("ready")
    await heard.wait()
    await asyncio.sleep(1)
    say("over")
serve({loop}, serving)
""")
    one.hears("ready")
    one.signal(signal.SIGUSR1)
    assert one.over() == (3, "over\n", "")


def test_without_a_thread_for_it_the_loop_keeps_its_signals(program):
    one = program(f"""{LOOP}
async def serving(heard, watch):
    say("ready")
    await heard.wait()
begin_thread = threading.Thread.start
def refuse(thread):
    if thread.name == "vllm-ashutdown-signals":
        raise RuntimeError("can't start new thread")
    begin_thread(thread)
threading.Thread.start = refuse
serve(asyncio.new_event_loop, serving)
""")
    one.hears("ready")
    one.signal()
    said = "[shutdown] nobody watches the signals: can't start new thread\n"
    assert one.over() == (3, "", said)


def test_a_program_that_uses_vllm_is_never_bitten():
    done: Any = subprocess.run(
        [sys.executable, "-c", f"{HEAD}{STOP}\nstop(0.1)\ntime.sleep(1)\nsay('alive')"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("alive\n", "", 0)
