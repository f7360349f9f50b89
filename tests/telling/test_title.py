"""The title shows the phase, in a process of its own: a title cannot be given back."""

from __future__ import annotations

from tests.programs import run

PROGRAM = """
from pathlib import Path
from vllm_ashutdown.core.budget import Budget
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.core.stop import Stop
from vllm_ashutdown.core.trigger import Trigger
{missing}
from vllm_ashutdown.telling.title import Title

def show():
    text = Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0")
    tell(text.decode().replace("\\0", " ").replace("\\n", " ").split("[shutdown")[-1])

stop = Stop(Mode.ABORT, Budget.arm(0, 10), Trigger.call("a test"))
stop.observed_by(Title())
before = Path("/proc/self/cmdline").read_bytes()
stop.enter(Phase.CORE)
show()
stop.finish()
stop.conclude(stop.outcome.result())
after = Path("/proc/self/cmdline").read_bytes()
plain = lambda title: title.replace(b"\\0", b" ").strip()
tell(plain(after) == plain(before))
"""


def test_it_shows_the_phase_and_is_as_it_was_in_the_end():
    code, lines, complaints = run(PROGRAM.format(missing=""))
    assert (code, complaints) == (0, "")
    assert lines == [": core]", "True"]


def test_without_the_package_the_title_stays():
    missing = "sys.modules['setproctitle'] = None"
    code, lines, complaints = run(PROGRAM.format(missing=missing))
    assert (code, complaints) == (0, "")
    assert lines[0] != ": core]"
    assert lines[1] == "True"
