"""The steps of a stop, as an ``LLMEngine`` needs them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any

from ..core.claims import claims
from ..core.files import ledger
from ..core.mode import Mode
from ..core.phase import Phase
from ..core.stop import Detail, Stop
from ..core.thread import OnceInThread
from ..errors import ENDED
from ..inventory import Look, Owned, compare, leftovers, look
from ..tree.belongings import ROWS, made_by, owned_by, release_for
from ..tree.ending import ends_of
from . import core_client, in_process
from .closed import close_parts, part_of
from .engine_state import EngineState
from .exceptions import refusal, shutdown_error

logger = logging.getLogger("vllm.ashutdown")

_PARTS = (
    "engine_core",
    "model_executor",
    "output_processor",
    "input_processor",
    "renderer",
)
"""Attributes of an engine that are gone once it is closed."""


class LLMEngineStop:
    """:class:`~vllm_ashutdown.core.order.Stoppable` for one ``LLMEngine``.

    No loop turns here, so only the blocking half of each pair is ever entered. Every
    attribute of the engine may be missing: ``__init__`` may have failed.
    """

    def __init__(self, engine: Any, state: EngineState) -> None:
        self.engine = engine
        self.state = state
        self.client = part_of(engine, "engine_core")
        self.processor = part_of(engine, "output_processor")
        self.struck: set[int] = set()
        self.processes = core_client.began(self.client)
        self.made: dict[str, str] = {}
        self.before: Look | None = None
        self.context = OnceInThread("vllm-ashutdown-zmq", self._close_context)

    @property
    def stop(self) -> Stop:
        """The stop that this serves."""
        assert self.state.stop is not None
        return self.state.stop

    def raised(self, mode: Mode) -> None:
        """What must happen at once when the stop is raised."""
        if mode is Mode.KILL and self.client is not None:
            core_client.kill(self.client, self.struck)

    def announce(self) -> Detail:
        return f"{self.stop.trigger}, mode {self.stop.mode}"

    def close_admission(self) -> Detail:
        # add_request and step look for the stop themselves.
        try:
            self.before = look(self._owned(), probes=ROWS)
        except Exception as error:  # it is for the report alone
            logger.debug("[shutdown] nothing is known from before: %r", error)
        return f"{len(self._requests())} requests in flight"

    def _requests(self) -> list[str]:
        return list(getattr(self.processor, "request_states", None) or ())

    def end_requests(self) -> Generator[None, None, Detail]:
        """Ends the call that may be under way in another thread, and what it ran."""
        yield from ()  # there is no loop to be held
        core_client.wake_reader(self.client, shutdown_error(ENDED))
        core_client.fail_utility_calls(self.client, shutdown_error(ENDED))
        # A model that computes in this process cannot be told to stop half way.
        with self._alone():
            if self.state.inside:
                return "a call is under way and does not end"
            left = self._requests()
            if left:
                self.processor.abort_requests(left, internal=True)
                core_client.abort_in_core(self.client, left)
            self.stop.requests.aborted += len(left)
        return f"{len(left)} ended"

    @contextlib.contextmanager
    def _alone(self) -> Generator[None, None, None]:
        """Waits until nobody steps or adds a request, as long as there is time."""
        with contextlib.ExitStack() as stack:
            for lock in (self.state.turn, self.state.door):
                if lock.acquire(timeout=self.stop.budget.allot(Phase.CORE)):
                    stack.callback(lock.release)
            yield

    def cancel_handler(self) -> Detail:
        return None  # there is none

    def stop_core(self, seconds: float) -> Detail:
        if self.client is None:
            return None
        if core_client.is_in_process(self.client):
            # vLLM's own, for an engine that is collected: it frees compiled code.
            finalizer = vars(self.engine).get("_finalizer")
            if finalizer is not None:
                finalizer()
            return in_process.stop(self.client, in_use=bool(self.state.inside))
        stop = self.stop
        core_client.refuse_calls(self.client, lambda: refusal(stop, ENDED))
        grace = 0.0 if stop.mode is Mode.KILL else seconds
        ends = core_client.stop(self.client, grace, self.struck)
        self.stop.processes.extend(ends)
        return ", ".join(map(str, ends)) or None

    def release(self) -> Detail:
        renderer = part_of(self.engine, "renderer")
        if renderer is not None:
            renderer.shutdown()
        reader = getattr(self.client, "output_queue_thread", None)
        if reader is not None:
            # It closes a socket that its context waits for.
            reader.join(self.stop.budget.allot(Phase.RELEASE))
        ledger.remove(self.state.files)
        release_for(self.processes)
        if not core_client.is_in_process(self.client):
            self.context.result_in_time(self.stop.budget.allot(Phase.RELEASE))
        claims.settle([*self.state.files, *made_by(self.processes)])
        close_parts(self.engine, _PARTS)
        self.client = self.processor = None
        return None

    def _close_context(self, seconds: float) -> None:
        core_client.close_context(self.client)

    def audit(self) -> Detail:
        named = {end.pid for end in self.stop.processes}
        for process in self.processes:
            if process.pid not in named:
                self.stop.processes.extend(ends_of(process, self.struck))
        found = [
            f"process {process.name} (pid {process.pid}) is alive"
            for process in self.processes
            if process.exitcode is None
        ]
        if self.before is not None:
            rows = compare(self.before, look(self._owned(), self.before, ROWS), ROWS)
            self.stop.inventory.extend(rows)
            found += [line for line in leftovers(rows) if line not in found]
        self.stop.leftovers.extend(found)
        return "; ".join(found) or "nothing left"

    def _owned(self) -> Owned:
        mine = set(self.state.files)
        made = {path: kind for kind, path in ledger.owned() if path in mine}
        self.made |= made | made_by(self.processes)
        return owned_by(self.processes, self.made)

    # -- where a loop turns: never here ----------------------------------------

    async def drained(self) -> Detail:
        return None

    async def handler_stopped(self) -> Detail:
        return None

    async def core_stopped(self, seconds: float) -> Detail:
        return self.stop_core(seconds)

    async def released(self) -> Detail:
        return self.release()
