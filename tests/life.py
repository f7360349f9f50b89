"""A program that stands for a server's top process, and the process that runs it.

No vLLM in it, so it takes milliseconds: what is real is the processes and the signals.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.programs import ROOT
from vllm_ashutdown.tree.member import Member

HEAD = """
import os, signal, sys, threading, time
from multiprocessing import get_context
from vllm_ashutdown.core.files import ledger
from vllm_ashutdown.starting import start
from vllm_ashutdown.tree import child
from vllm_ashutdown.tree.entry import Entry
from vllm_ashutdown.tree.place import home, take_in
from vllm_ashutdown.tree.member import Member
from vllm_ashutdown.tree.part import Part

def say(*words):
    print(*words, flush=True)

def soon(*words):  # when this thread is where it waits
    threading.Timer(0.2, say, words).start()

def willing(at):
    os.write(at, b"!")
    threading.Event().wait()

def deaf(at):
    for number in child.SIGNALS:
        child.current().means(number, lambda number, frame: None)
    willing(at)

def begin(run):
    here, there = os.pipe()
    home()
    with start.whole():
        process = get_context("fork").Process(target=Entry(run), args=(there,))
        process.start()
        take_in([process], Part.CORE)
    os.read(here, 1)
    say("child", process.pid)
    return process

def forever():
    while True:
        threading.Event().wait(0.05)

start.watch()
"""

FULL = """
import fcntl
out, into = os.pipe()
fcntl.fcntl(into, fcntl.F_SETFL, os.O_NONBLOCK)
try:
    while True:
        os.write(into, bytes(4096))
except BlockingIOError:
    fcntl.fcntl(into, fcntl.F_SETFL, 0)
os.dup2(into, 2)
"""
"""Nobody reads what it logs, and there is no room for a line more."""

MAIN_THREAD_ENDS = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
def rest():
    libc.pthread_join(threading.main_thread().ident, None)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=rest).start()
libc.pthread_exit(None)
"""
"""It has its stdin and one other thread, which ends it when stdin ends."""


class Program:
    """A start that is under way."""

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        path, self.errors = folder / "vllm", folder / "stderr"
        path.write_text(HEAD + textwrap.dedent(text))
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(path), *(arguments or ("serve",))],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT / "vllm")},
            )

    def hears(self, word: str) -> list[str]:
        """What the program says after ``word``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, *rest = line.split()
            if first == word:
                return rest
        pytest.fail(f"{word} was never said: {self.errors.read_text()}")

    def child(self) -> Member:
        """The next child that it says it has."""
        (pid,) = self.hears("child")
        return Member.of(int(pid), "child")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.at = time.monotonic()
        self.process.send_signal(number)

    def over(self) -> tuple[int, str, str]:
        """Its exit code and the rest of what it says."""
        code = self.process.wait(10)
        self.seconds = time.monotonic() - self.at
        assert self.process.stdout is not None
        return code, self.process.stdout.read(), self.errors.read_text()
