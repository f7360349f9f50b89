"""A signal ends a start, whatever runs in it, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.life import FULL, HEAD
from tests.programs import ROOT

SECONDS = 2.0
"""From the last signal to the exit: what is promised."""

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_what_was_begun_ends_and_the_code_is_that_of_a_stop(program, tmp_path, number):
    made = tmp_path / "made"
    one = program(f"""
        def main():
            start.reached("its child starts")
            begin(willing)
            open({str(made)!r}, "w").close()
            ledger.remember({str(made)!r})
            say("ready")
            forever()

        start.run(main)
    """)
    child = one.child()
    one.hears("ready")
    one.signal(number)
    code, _, err = one.over()
    assert (code, err) == (0, "")
    assert one.seconds < SECONDS
    assert not child.alive
    assert not made.exists()


def test_one_line_says_what_was_interrupted(program):
    one = program("""
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s")

        def main():
            start.reached("the weights are read")
            say("ready")
            forever()

        start.run(main)
    """)
    one.hears("ready")
    one.signal()
    code, _, err = one.over()
    lines = [line for line in err.splitlines() if "the start ends here" in line]
    assert code == 0
    assert lines == [
        "[shutdown] signal SIGTERM while the weights are read: the start ends here"
    ]


def test_before_anything_is_begun_it_leaves_past_hooks_of_half_loaded_modules(program):
    one = program("""
        import atexit
        atexit.register(lambda: say("hook"))
        say("ready")
        forever()
    """)
    one.hears("ready")
    one.signal()
    assert one.over() == (
        0,
        "",
        "[shutdown] signal SIGTERM while vLLM is loaded: the start ends here\n",
    )


LOST = """
    def main():
        begin(willing)
        soon("ready")
        while True:
            try:
                forever()
            except BaseException:
                {answer}

    start.run(main)
"""


def test_an_exception_that_is_lost_on_its_way_loses_no_signal(program):
    one = program(LOST.format(answer="continue"))
    child = one.child()
    one.hears("ready")
    one.signal()
    code, _, err = one.over()
    assert code == 0
    assert one.seconds < SECONDS + 0.5  # and what the machine takes to see it
    assert not child.alive
    assert "does not end by itself" in err


@pytest.mark.parametrize("obstacle", ["a log that nobody reads", "an exit hook"])
def test_nothing_on_its_way_out_holds_it_up_for_ever(program, obstacle):
    hook = "import atexit; atexit.register(time.sleep, 60)"
    one = program(f"""
{FULL if obstacle == "a log that nobody reads" else hook}
import logging
logging.basicConfig(level=logging.INFO)

def main():
    begin(willing)
    say("ready")
    forever()

start.run(main)
""")
    child = one.child()
    one.hears("ready")
    one.signal()
    code, _, _ = one.over()
    assert code == 0
    assert one.seconds < SECONDS + 0.5
    assert not child.alive


def test_the_one_who_sees_to_it_does_not_wait_for_the_log_either(program):
    one = program(f"""
{FULL}
import logging
logging.basicConfig(level=logging.INFO)

def main():
    begin(willing)
    say("ready")
    while True:  # the exception is lost here: nobody else writes to the log
        try:
            forever()
        except BaseException:
            continue

start.run(main)
""")
    child = one.child()
    one.hears("ready")
    one.signal()
    code, _, _ = one.over()
    assert code == 0
    assert one.seconds < SECONDS + 0.5
    assert not child.alive


def test_a_start_that_goes_on_is_told_when_it_is_over(program):
    one = program("""
        def main():
            soon("ready")
            while True:
                try:
                    while start.trigger is None:
                        threading.Event().wait(0.05)
                    break
                except BaseException:
                    continue
            say("over", start.over(), start.active)
            threading.Event().wait(2.5)  # the thread that sees to it leaves it alone
            say("served")

        start.run(main)
    """)
    one.hears("ready")
    one.signal()
    assert one.hears("over") == ["signal", "SIGTERM", "False"]
    assert one.over()[:2] == (0, "served\n")


def test_one_that_gives_up_without_a_word_is_ended_too(program):
    one = program(LOST.format(answer="return"))
    child = one.child()
    one.hears("ready")
    one.signal()
    code, _, err = one.over()
    assert (code, err) == (0, "")
    assert one.seconds < SECONDS
    assert not child.alive


def test_a_process_that_is_begun_is_also_noted(program):
    one = program("""
        def main():
            with start.whole():
                begin(willing)
                os.kill(os.getpid(), signal.SIGTERM)
                say("whole")
            say("never")

        start.run(main)
    """)
    child = one.child()
    one.at = time.monotonic()
    assert one.over() == (0, "whole\n", "")
    assert not child.alive


@pytest.mark.parametrize("signals", [1, 2, 3])
def test_a_child_that_does_not_leave_is_killed_at_the_second_signal(program, signals):
    one = program("""
        def main():
            begin(deaf)
            say("ready")
            forever()

        start.run(main)
    """)
    child = one.child()
    one.hears("ready")
    one.signal()
    for _ in range(signals - 1):
        time.sleep(0.1)
        one.signal()
    code, _, err = one.over()
    assert code == 0
    assert "Traceback" not in err
    assert not child.alive
    assert one.seconds < (SECONDS if signals == 1 else 0.7)


def test_a_start_that_fails_keeps_its_error_and_leaves_nothing(program, tmp_path):
    made = tmp_path / "made"
    one = program(f"""
        def main():
            begin(willing)
            open({str(made)!r}, "w").close()
            ledger.remember({str(made)!r})
            raise OSError("no space left for it")

        start.run(main)
    """)
    one.at = time.monotonic()
    child = one.child()
    code, _, err = one.over()
    assert code == 1
    assert err.startswith("Traceback (most recent call last)")
    assert err.rstrip().endswith("OSError: no space left for it")
    assert err.count("Traceback") == 1
    assert not child.alive
    assert not made.exists()


@pytest.mark.parametrize(("code", "text"), [(2, ""), (1, "a bad option")])
def test_one_that_leaves_by_itself_keeps_its_code(program, code, text):
    one = program(f"start.run(lambda: sys.exit({text!r} or {code}))")
    one.at = time.monotonic()
    assert one.over() == (code, "", f"{text}\n" if text else "")


def test_one_that_comes_to_its_end_goes_on(program):
    one = program("""
        start.run(start.over)
        say("went on")
    """)
    one.at = time.monotonic()
    assert one.over() == (0, "went on\n", "")


def test_a_child_that_is_signalled_alone_ends_the_start(program):
    one = program("""
        import logging
        logging.basicConfig(level=logging.INFO, format="%(message)s")

        def main():
            begin(willing)
            say("ready")
            forever()

        start.run(main)
    """)
    child = one.child()
    one.hears("ready")
    one.at = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    code, _, err = one.over()
    assert code == 0
    assert f"SIGTERM to ForkProcess-1 (pid {child.pid}) while" in err
    assert one.seconds < SECONDS
    assert not child.alive


def test_a_start_that_sleeps_through_what_a_child_reports_is_woken(program):
    one = program("""
        from vllm_ashutdown.tree import interrupt

        sends, send = iter([signal.raise_signal]), interrupt._send
        interrupt._send = lambda number: next(sends, send)(number)

        def main():
            begin(willing)
            say("ready")
            threading.Event().wait()

        start.run(main)
    """)
    child = one.child()
    one.hears("ready")
    one.at = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    code, _, err = one.over()
    assert code == 0
    assert "does not end by itself" not in err
    assert not child.alive


def test_what_a_child_reports_is_no_second_signal(program):
    one = program("""
        def main():
            begin(deaf)
            say("ready")
            while True:
                try:
                    forever()
                except BaseException:
                    say("told")

        start.run(main)
    """)
    child = one.child()
    one.hears("ready")
    os.kill(child.pid, signal.SIGTERM)
    one.hears("told")
    one.signal()
    assert not child.gone_within(0.5)  # it gets its time: this was the first of ours
    code, _, _ = one.over()
    assert code == 0
    assert not child.alive


def test_a_signal_to_the_whole_group_is_one_signal(program):
    one = program("""
        os.setpgid(0, 0)

        def main():
            begin(willing)
            begin(deaf)
            say("ready")
            forever()

        start.run(main)
    """)
    children = [one.child(), one.child()]
    one.hears("ready")
    one.at = time.monotonic()
    os.killpg(one.process.pid, signal.SIGINT)
    code, _, err = one.over()
    assert code == 0
    assert "Traceback" not in err
    assert one.seconds > 0.5  # the deaf one got its time: nobody has raised it
    assert not any(one.alive for one in children)


@pytest.mark.parametrize(
    "arguments", [("bench",), ("run-batch",), ("launch", "render")], ids=str
)
def test_what_does_not_serve_keeps_its_own_signals(program, arguments):
    one = program("say(start.active, signal.getsignal(15).name)", *arguments)
    one.at = time.monotonic()
    assert one.over() == (0, "False SIG_DFL\n", "")


def test_what_is_left_to_vllm_gets_its_signals_back(program):
    one = program("""
        before = signal.getsignal(15)
        start.leave()
        say(start.active, signal.getsignal(15).name, signal.getsignal(2) is before)
    """)
    one.at = time.monotonic()
    assert one.over() == (0, "False SIG_DFL False\n", "")


def test_a_program_that_uses_vllm_keeps_its_own_signals():
    done: Any = subprocess.run(
        [sys.executable, "-c", HEAD + "say(start.active, signal.getsignal(15).name)"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False SIG_DFL\n", done


def test_the_service_manager_hears_that_a_start_ends(program, tmp_path, monkeypatch):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        one = program("""
            def main():
                start.reached("the weights are read")
                say("ready")
                forever()

            start.run(main)
        """)
        one.hears("ready")
        one.signal()
        assert manager.recv(4096).startswith(b"STOPPING=1\n")
        assert one.over()[0] == 0
