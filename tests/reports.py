"""Reports of stops that never were, for tests of what is made of them."""

from __future__ import annotations

from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase, PhaseRecord
from vllm_ashutdown.core.report import ProcessEnd, RequestCounts, ShutdownReport
from vllm_ashutdown.core.trigger import Trigger
from vllm_ashutdown.inventory import Row

SECONDS = {
    Phase.ANNOUNCE: 30e-6,
    Phase.ADMISSION: 20e-6,
    Phase.DRAIN: 6.0,
    Phase.END: 1e-3,
    Phase.HANDLER: 1e-3,
    Phase.CORE: 3.0,
    Phase.RELEASE: 1e-3,
    Phase.HTTP: 1.5,
    Phase.AUDIT: 10e-6,
}
"""What each phase took; HTTP closes beside the core."""


def a_report(
    *,
    changed: dict[Phase, PhaseRecord] | None = None,
    processes: tuple[ProcessEnd, ...] = (ProcessEnd("EngineCore", 4711, 0),),
    leftovers: tuple[str, ...] = (),
    inventory: tuple[Row, ...] = (),
    final_mode: Mode = Mode.DRAIN,
    seconds: float = 9.01,
    trigger: Trigger | None = None,
) -> ShutdownReport:
    """A drain of 6 s and a teardown of 3 s, with what a test wants otherwise."""
    records, now, handler_over = {}, 0.0, 0.0
    for phase, spent in SECONDS.items():
        began = handler_over if phase is Phase.HTTP else now
        about = f"about {phase}"
        records[phase] = PhaseRecord(phase, 60.0, spent, Outcome.DONE, about, began)
        now = max(now, began + spent)
        if phase is Phase.HANDLER:
            handler_over = now
    return ShutdownReport(
        trigger=trigger or Trigger.signal(15),
        mode=Mode.DRAIN,
        final_mode=final_mode,
        seconds=seconds,
        phases=tuple((records | (changed or {})).values()),
        requests=RequestCounts(completed=8, aborted=2, refused=1),
        processes=processes,
        leftovers=leftovers,
        inventory=inventory,
    )
