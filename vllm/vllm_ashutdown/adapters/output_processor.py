"""vllm.v1.engine.output_processor: the requests in flight, and how one ends."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ..core.exchange import current_exchange
from ..core.tally import Tally, WatchedMap
from ..errors import DIED, ENDED, REFUSED
from .exceptions import shutdown_error

logger = logging.getLogger("vllm.ashutdown")

SLICE_SECONDS = 0.005
"""How long ending requests may hold the loop before it lets others run."""

EXCHANGE_ATTRIBUTE = "_ashutdown_exchange"
"""Where a request's output queue keeps the HTTP exchange that it belongs to."""


def watch_requests(processor: Any, tally: Tally) -> WatchedMap:
    """Lets ``tally`` count the requests in ``processor``. Idempotent."""
    states = processor.request_states
    if not isinstance(states, WatchedMap):
        processor.request_states = states = tally.watch(states)
    return states


def unwatch_requests(processor: Any, tally: Tally) -> None:
    """Ends what :func:`watch_requests` began. Idempotent."""
    states = processor.request_states
    if isinstance(states, WatchedMap):
        processor.request_states = tally.unwatch(states)


def close_door(processor: Any) -> None:
    """Makes ``processor`` refuse every request that is still on its way in.

    It is the last door: a request that was let in before the stop, and is
    still being tokenized when the requests are ended, meets it.
    """
    processor.add_request = _refuse


def _refuse(*args: Any, **kwargs: Any) -> None:
    exchange = current_exchange.get()
    if exchange is not None:
        exchange.end(REFUSED)
    raise shutdown_error(REFUSED)


def end_requests(
    processor: Any,
    abort_in_core: Callable[[list[str]], None],
    ended: Callable[[int], None],
) -> Generator[None, None, None]:
    """Gives each request in ``processor`` its one terminal event.

    Yields at least every :data:`SLICE_SECONDS`. Requests that finish by
    themselves in between are left alone.

    Args:
        processor: vLLM's ``OutputProcessor``.
        abort_in_core: Tells the core, with the ids of a slice.
        ended: Is told how many at a time. One of n sequences counts n times, as
            it does in the engine's own map.
    """
    told: list[str] = []
    until = time.perf_counter() + SLICE_SECONDS
    for request_id in list(processor.request_states):
        state = processor.request_states.get(request_id)
        if state is None:
            continue
        forgotten = _end(processor, state)
        told += forgotten
        ended(len(forgotten))
        if time.perf_counter() >= until:
            abort_in_core(told)
            told = []
            yield
            until = time.perf_counter() + SLICE_SECONDS
    if told:
        abort_in_core(told)


def end_inputs(queues: Iterable[Any]) -> None:
    """Ends the requests whose input is itself a stream and has given nothing yet.

    They have a queue that someone waits on, and no entry in the map.
    """
    for queue in list(queues):
        queue.close()  # cancels the task that reads the input
        if not isinstance(queue.output, Exception):
            queue.put(shutdown_error(ENDED))


def forget_requests(processor: Any) -> None:
    """Drops what is left in the map of an engine whose core died unasked.

    Its output handler has given the error to each of them, or ``add_request``
    does; a second one would be one too many.
    """
    processor.request_states.clear()


def _end(processor: Any, state: Any) -> list[str]:
    """Ends one request, with its siblings where it is one of n.

    Returns:
        The ids that the core must forget.
    """
    queue = state.queue
    siblings = _siblings(processor, state)
    error = shutdown_error(ENDED, output=_produced_or_none(state, siblings))
    parent = state.parent_req
    own_ids = (
        [parent.request_id]
        if parent is not None and parent.request_id in processor.parent_requests
        else [sibling.request_id for sibling in siblings]
    )
    forgotten = own_ids
    # vLLM's abort puts an output with the finish reason "abort" there, which a client
    # would take for an answer, and which costs as much as all the rest. It makes none
    # for a request that nobody waits for.
    for sibling in siblings:
        sibling.queue = None
    try:
        forgotten = processor.abort_requests(own_ids, internal=True)
    except Exception:
        logger.exception("[shutdown] request %s was not forgotten", state.request_id)
        processor.request_states.pop(state.request_id, None)
    finally:
        # Whatever happened above, no one may be left waiting. An error put behind an
        # output wins, and there is no await between the two.
        if queue is not None and not isinstance(queue.output, Exception):
            exchange = getattr(queue, EXCHANGE_ATTRIBUTE, None)
            if exchange is not None:
                exchange.end(ENDED)
            queue.put(error)
    return forgotten


def _siblings(processor: Any, state: Any) -> list[Any]:
    if state.parent_req is None:
        return [state]
    found = (
        processor.request_states.get(child) for child in state.parent_req.child_requests
    )
    return [child for child in found if child is not None] or [state]


def _produced_or_none(state: Any, siblings: Iterable[Any]) -> Any:
    """What was produced, or nothing: telling must never cost the ending."""
    try:
        return _produced(state, siblings)
    except Exception:
        logger.warning(
            "[shutdown] what request %s had produced could not be gathered",
            state.request_id,
            exc_info=True,
        )
        return None


def _produced(state: Any, siblings: Iterable[Any]) -> Any:
    """All that was produced for a request so far, as vLLM's ``RequestOutput``.

    The whole text and all tokens, also where the caller asked for deltas: a
    caller that catches the error should not have to have kept them.
    """
    if state.detokenizer is None:  # a pooling request has nothing to show
        return None
    from vllm.outputs import CompletionOutput, RequestOutput

    completions = [
        CompletionOutput(
            index=sibling.request_index,
            # Without detokenization there are tokens and no text.
            text=getattr(sibling.detokenizer, "output_text", ""),
            token_ids=list(sibling.detokenizer.output_token_ids),
            cumulative_logprob=sibling.logprobs_processor.cumulative_logprob,
            logprobs=sibling.logprobs_processor.logprobs,
        )
        for sibling in sorted(siblings, key=lambda one: one.request_index)
    ]
    parent = state.parent_req
    return RequestOutput(
        request_id=parent.external_req_id if parent else state.external_req_id,
        prompt=state.prompt,
        prompt_token_ids=state.prompt_token_ids,
        prompt_logprobs=None,
        outputs=completions,
        finished=False,
    )


def make_propagate_error(original: Callable[..., None]) -> Callable[..., None]:
    """``OutputProcessor.propagate_error``: the core died, and each request hears of it.

    vLLM's handlers would close each stream with ``[DONE]`` behind the error, like a
    success.
    """

    @functools.wraps(original)
    def propagate_error(self: Any, e: Exception) -> None:
        for state in self.request_states.values():
            exchange = getattr(state.queue, EXCHANGE_ATTRIBUTE, None)
            if exchange is not None:
                exchange.end(DIED)
        original(self, e)

    return propagate_error
