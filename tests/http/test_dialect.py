from __future__ import annotations

import json

import pytest

from vllm_ashutdown.http.dialect import Dialect, Messages, Responses, dialect_of

SAID = 'shutting down: "soon"\n\nsafe to retry, déjà vu'


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/completions", Dialect),
        ("/v1/chat/completions", Dialect),
        ("/v1/embeddings", Dialect),
        ("/", Dialect),
        ("", Dialect),
        ("/v1/responses", Responses),
        ("/v1/responses/", Responses),
        ("/behind/a/proxy/v1/responses", Responses),
        ("/v1/messages", Messages),
        ("/v1/messages/", Messages),
        ("/v1/messages/count_tokens", Messages),
        ("/v1/messages-of-mine", Dialect),
        ("/not-v1/responses-of-mine", Dialect),
    ],
)
def test_the_path_says_which_api_it_is(path, kind):
    assert type(dialect_of(path)) is kind


def parsed(event: bytes) -> tuple[str, dict]:
    """The one event in ``event``, as a client of server-sent events reads it."""
    assert event.endswith(b"\n\n")
    assert b"[DONE]" not in event
    (block,) = event.decode().removesuffix("\n\n").split("\n\n")
    kind, data = block.split("\n")
    assert kind.startswith("event: ")
    assert data.startswith("data: ")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("dialect", [Dialect(), Responses(), Messages()])
def test_the_terminal_event_is_one_error_event_whatever_is_said(dialect):
    kind, data = parsed(dialect.event_bytes(SAID, 3))
    assert kind == "error"
    assert data == dialect.event(SAID, 3)
    # What the clients look for, and raise when they find it.
    assert data["error"]["message"] == SAID


@pytest.mark.parametrize("dialect", [Dialect(), Responses(), Messages()])
def test_the_body_is_json_with_an_error(dialect):
    data = json.loads(dialect.body_bytes(SAID))
    assert data == dialect.error(SAID)
    assert data["error"]["message"] == SAID
    assert data["error"]["code"] == 503


@pytest.mark.parametrize("dialect", [Dialect(), Responses()])
def test_openais_apis_name_the_type(dialect):
    error = dialect.error(SAID)["error"]
    assert error["type"] == "EngineShutdownError"
    assert error["param"] is None


def test_the_responses_api_counts_its_events():
    data = Responses().event(SAID, 7)
    assert (data["type"], data["sequence_number"], data["code"]) == ("error", 7, "503")
    assert data["message"] == SAID


def test_anthropics_api_has_its_own_word_for_retry():
    data = Messages().error(SAID)
    assert (data["type"], data["error"]["type"]) == ("error", "overloaded_error")
    assert Messages().event(SAID, 7) == data
