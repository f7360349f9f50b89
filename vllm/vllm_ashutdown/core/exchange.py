"""One HTTP request, as the engine side may know it without knowing HTTP."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct

from ..errors import ENDED


class Exchange(Struct):
    """Links an HTTP request to the engine requests that are made for it.

    The HTTP side sets it in the request's context and reads it; the engine
    side, which runs in that context, finds it there.

    Attributes:
        admitted: It was let in before the stop, so engine requests made for it
            while the server drains are let in too.
        ended: The stop has ended, or refused, an engine request of it: whatever
            the server's handler still writes is not an answer any more.
        why: What the client is told then.
    """

    admitted: bool = True
    ended: bool = False
    why: str = ENDED

    def end(self, why: str) -> None:
        """From now on nothing of it is an answer; ``why`` is for the client."""
        if not self.ended:
            self.ended, self.why = True, why


current_exchange: ContextVar[Exchange | None] = ContextVar(
    "vllm_ashutdown_exchange", default=None
)
