"""How a stream ended, by what came over the wire."""

from __future__ import annotations

import json

import pytest

from vllm_ashutdown.audit.address import Address
from vllm_ashutdown.audit.streams import DONE, End, Stream

TOKEN = json.dumps({"choices": [{"text": " 1"}]})
CHAT = json.dumps({"choices": [{"delta": {"content": " 1"}}]})
ROLE = json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
ERROR = json.dumps({"error": {"message": "stopping", "code": 503}})
OTHER = json.dumps({"error": {"message": "broken", "code": 500}})


def reason(word: str) -> str:
    return json.dumps({"choices": [{"text": "", "finish_reason": word}]})


def usage(tokens: int) -> str:
    return json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})


def stream(*events: str, status: int = 200, over: bool = True) -> Stream:
    one = Stream(Address(), "/v1/completions", {"max_tokens": 2})
    one.status = status
    for event in events:
        one._take(event)
    if over:
        one.over.set()
    return one


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([TOKEN, TOKEN, reason("length"), DONE], End.COMPLETED),
        ([TOKEN, reason("stop"), DONE], End.COMPLETED),
        ([ROLE, CHAT, CHAT, reason("length"), usage(2), DONE], End.COMPLETED),
        ([TOKEN, ERROR], End.ENDED),
        ([ERROR], End.ENDED),
        ([TOKEN], End.CUT),
        ([], End.CUT),
        ([TOKEN, TOKEN, reason("length")], End.CUT),
        ([TOKEN, ERROR, ERROR], End.CUT),
        ([TOKEN, DONE], End.LIED),
        ([TOKEN, reason("abort"), DONE], End.LIED),
        ([TOKEN, reason("length"), usage(1), DONE], End.LIED),
        ([TOKEN, ERROR, DONE], End.LIED),
        ([TOKEN, "no JSON", "7", "null", ERROR], End.ENDED),
    ],
)
def test_how_it_ended(events, end):
    one = stream(*events)
    assert one.end is end
    assert one.words.startswith(str(end))
    assert one.end.is_honest is (end in (End.COMPLETED, End.ENDED))


def test_one_that_is_not_over_is_open():
    one = stream(TOKEN, TOKEN, over=False)
    assert one.end is End.OPEN
    assert one.result.flowing
    assert one.result.over_at is None
    assert not stream(TOKEN).result.flowing


def test_one_that_was_refused_never_began():
    one = stream(status=503)
    assert (one.end, one.words) == (End.REFUSED, "refused: HTTP 503")
    assert one.is_retryable
    assert not stream(status=400).is_retryable


@pytest.mark.parametrize(("event", "retryable"), [(ERROR, True), (OTHER, False)])
def test_whether_it_is_safe_to_retry_is_what_the_server_said(event, retryable):
    one = stream(TOKEN, event)
    assert one.result.retryable is retryable
    assert ("safe to retry" in one.words) is retryable
    assert one.error == json.loads(event)["error"]["message"]


def test_the_server_counts_better_than_its_client():
    assert stream(TOKEN, TOKEN).tokens == 2
    assert stream(TOKEN, usage(7)).tokens == 7
    assert stream(ROLE, CHAT).tokens == 1
    assert stream(ROLE, CHAT, CHAT).text == " 1 1"
