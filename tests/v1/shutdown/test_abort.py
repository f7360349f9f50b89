"""Without a drain time a signal ends every request at once, each in its own dialect."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import anthropic
import openai
import pytest

from tests.clients import TYPED, Answer, Call, Clients
from tests.server import Server
from vllm_ashutdown.core.mode import Mode
from vllm_ashutdown.core.phase import Outcome, Phase
from vllm_ashutdown.core.trigger import TriggerKind

pytestmark = pytest.mark.real

# The measured figure is a third of it: this is to hold on a loaded machine too.
SECONDS = 2.0

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")


def test_everything_in_flight_ends_typed_and_retryable(
    serve: Callable[..., Server], figure: Callable[[str, float], None]
) -> None:
    server = serve("--shutdown-timeout", "0")
    with Clients(server.address) as clients:
        groups = _calls(clients)
        with clients.in_flight(*chain(*groups)) as answers:
            raw_streamed, streamed, raw_whole, whole = _split(answers, groups)
            clients.flow([*raw_streamed, *streamed])
            server.until_running(len(answers) + 2)  # n=2, and two prompts
            server.signal(signal.SIGTERM)
            end = server.wait(15)

    figure("from signal to exit", end.seconds)
    assert end.seconds < SECONDS
    assert [answer.end for answer in raw_streamed] == [TYPED] * len(raw_streamed)
    for answer in streamed:
        _raised_on_a_stream(answer)
    for answer in raw_whole:
        _is_refusal(answer.status, answer.headers)
        assert answer.body["error"]["code"] == 503
    for answer in whole:
        assert isinstance(
            answer.error, openai.InternalServerError | anthropic.InternalServerError
        )
        _is_refusal(answer.error.status_code, answer.error.response.headers)

    report = server.report
    assert (report.trigger.kind, report.trigger.detail) == (
        TriggerKind.SIGNAL,
        "SIGTERM",
    )
    assert (report.mode, report.final_mode) == (Mode.ABORT, Mode.ABORT)
    assert report.clean
    # The two of n=2 count as two, like the two prompts of one call.
    assert report.requests.aborted == len(answers) + 2
    assert report.requests.completed == 0
    assert [record.phase for record in report.phases] == list(Phase)
    outcomes = {record.phase: record.outcome for record in report.phases}
    assert outcomes.pop(Phase.DRAIN) is Outcome.SKIPPED
    assert set(outcomes.values()) == {Outcome.DONE}
    assert server.faults(end) == []


def _calls(clients: Clients) -> tuple[Sequence[Call], ...]:
    raw_streams = [
        *(clients.raw_stream(path) for path in PATHS),
        # One HTTP request, several of the engine's: still one terminal event.
        clients.raw_stream("/v1/completions", n=2, temperature=1),
        clients.raw_stream("/v1/completions", prompt=["Count from 4", "Count from 5"]),
    ]
    streams = [
        clients.completion_stream(),
        clients.chat_stream(),
        clients.response_stream(),
        clients.message_stream(),
    ]
    raw_plain = [clients.raw(path) for path in PATHS]
    plain = [
        clients.completion(),
        clients.chat(),
        clients.response(),
        clients.message(),
    ]
    return raw_streams, streams, raw_plain, plain


def _split(
    answers: list[Answer], groups: Sequence[Sequence[Call]]
) -> list[list[Answer]]:
    rest = iter(answers)
    return [[next(rest) for _ in group] for group in groups]


def _raised_on_a_stream(answer: Answer) -> None:
    """What a program sees: an exception behind the text so far, and no half answer."""
    assert answer.text
    assert answer.finish_reason is None
    assert isinstance(answer.error, openai.APIError | anthropic.APIError)
    body = answer.error.body
    assert isinstance(body, dict)
    # OpenAI's client unwraps the error, Anthropic's does not.
    assert body.get("error", body)["code"] == 503


def _is_refusal(status: int | None, headers: Mapping[str, str]) -> None:
    assert (status, headers["retry-after"]) == (503, "1")
