"""The ASGI layer alone, with an app that does what a test says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from vllm_ashutdown.core.exchange import current_exchange
from vllm_ashutdown.core.tally import Tally
from vllm_ashutdown.errors import ENDED, REFUSED
from vllm_ashutdown.http.dialect import dialect_of
from vllm_ashutdown.http.gate import Gate
from vllm_ashutdown.http.middleware import ShutdownMiddleware

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

SSE = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
PLAIN = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json")],
}


def chunk(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


END = ...
"""In a script: the stop ends the exchange here."""

DONE = chunk(b"data: [DONE]\n\n")
LAST = chunk(b"", more=False)


class App:
    """Sends a script. An exception in it is raised, ``END`` ends the exchange."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.scopes: list[Any] = []
        self.finished = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        for what in self.script:
            if what is END:
                current_exchange.get().end(ENDED)
            elif isinstance(what, asyncio.Event):
                await what.wait()
            elif isinstance(what, BaseException):
                raise what
            else:
                await send(what)
        self.finished = True


class Client:
    """One connection to an app behind the middleware."""

    def __init__(self, app: Any, gate: Gate | None = None) -> None:
        self.gate = gate or Gate(Tally(), 7)
        self.layer = ShutdownMiddleware(app, self.gate)
        self.sent: list[Any] = []

    async def __call__(
        self, method: str = "POST", path: str = CHAT, kind: str = "http"
    ) -> list[Any]:
        scope = {"type": kind, "path": path, "headers": []}
        if kind == "http":
            scope["method"] = method
        await self.layer(scope, self.receive, self.send)
        return self.sent

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)


def closed() -> Gate:
    gate = Gate(Tally(), 7)
    gate.close()
    return gate


def assert_503(sent: list[Any], path: str, message: str) -> None:
    start, body = sent
    assert start["type"] == "http.response.start"
    assert start["status"] == 503
    headers = dict(start["headers"])
    assert headers == {
        b"content-type": b"application/json",
        b"content-length": str(len(body["body"])).encode(),
        b"retry-after": b"7",
        b"connection": b"close",
    }
    assert body["type"] == "http.response.body"
    assert not body.get("more_body", False)
    assert json.loads(body["body"]) == dialect_of(path).error(message)


# -- the gate ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", [CHAT, "/health", "/metrics"])
@pytest.mark.parametrize(
    "script",
    [
        (PLAIN, chunk(b"{}", more=False)),
        (SSE, chunk(b"data: 1\n\n"), DONE, LAST),
    ],
    ids=["plain", "stream"],
)
async def test_an_open_gate_lets_everything_pass_untouched(method, path, script):
    app = App(*script)
    client = Client(app)
    sent = await client(method, path)
    assert len(sent) == len(script)
    assert all(here is there for here, there in zip(sent, script, strict=True))
    assert app.scopes[0]["path"] == path
    assert client.gate.refused == 0


async def test_an_open_gate_lets_trailers_pass():
    script = (
        PLAIN | {"trailers": True},
        chunk(b"{}", more=False),
        {"type": "http.response.trailers", "headers": [(b"x-sum", b"1")]},
    )
    assert await Client(App(*script))() == list(script)


async def test_an_open_gate_lets_websockets_and_the_lifespan_pass():
    accept = {"type": "websocket.accept"}
    assert await Client(App(accept))(kind="websocket") == [accept]
    complete = {"type": "lifespan.startup.complete"}
    assert await Client(App(complete))(kind="lifespan") == [complete]


async def test_a_closed_gate_lets_the_lifespan_pass():
    # It carries the end of the server's own life.
    complete = {"type": "lifespan.shutdown.complete"}
    client = Client(App(complete), closed())
    assert await client(kind="lifespan") == [complete]
    assert client.gate.refused == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", RESPONSES, MESSAGES, "/tokenize", "/health"]
)
async def test_a_closed_gate_refuses_in_the_apis_own_words(method, path):
    app = App(PLAIN, LAST)
    client = Client(app, closed())
    assert_503(await client(method, path), path, REFUSED)
    assert app.scopes == []
    assert client.gate.refused == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/health", "/health/", "/ping", "/x/ready"])
async def test_readiness_is_false_once_the_gate_is_closed(method, path):
    app = App(PLAIN, LAST)
    client = Client(app, closed())
    assert_503(await client(method, path), path, REFUSED)
    assert app.scopes == []
    assert client.gate.refused == 0, "a probe is no request"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/models", "/version", "/healthy", "/health/live"]
)
async def test_what_asks_nothing_of_the_engine_passes_a_closed_gate(method, path):
    client = Client(App(PLAIN, LAST), closed())
    assert await client(method, path) == [PLAIN, LAST]
    assert client.gate.refused == 0


async def test_a_websocket_meets_a_closed_gate():
    app = App({"type": "websocket.accept"})
    client = Client(app, closed())
    assert await client(kind="websocket", path="/v1/realtime") == [
        {"type": "websocket.close", "code": 1012, "reason": REFUSED}
    ]
    # RFC 6455: a control frame carries 125 bytes, two of which are the code.
    assert len(REFUSED.encode()) <= 123
    assert app.scopes == []
    assert client.gate.refused == 1


async def test_each_refusal_counts():
    client, heard = Client(App(), closed()), []
    client.gate.changed = lambda: heard.append(client.gate.refused)
    for _ in range(3):
        await client()
    await client("GET", "/health")
    assert client.gate.refused == 3
    assert heard == [1, 2, 3]


async def test_what_was_let_in_runs_on_when_the_gate_closes():
    go = asyncio.Event()
    script = (SSE, chunk(b"data: 1\n\n"), go, DONE, LAST)
    client = Client(App(*script))
    request = asyncio.ensure_future(client())
    await asyncio.sleep(0)
    client.gate.close()
    go.set()
    await request
    assert client.sent == [SSE, script[1], DONE, LAST]
    assert client.gate.refused == 0


# -- an exchange that the stop ends ------------------------------------------------


AFTERWARDS = {
    "nothing": (),
    "a whole answer": (PLAIN, chunk(b'{"error": "Internal"}', more=False)),
    "a stream": (SSE, chunk(b"data: {}\n\n"), DONE, LAST),
    "an error": (LookupError("engine is gone"),),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", RESPONSES, MESSAGES])
@pytest.mark.parametrize("then", AFTERWARDS.values(), ids=AFTERWARDS)
async def test_what_is_ended_before_it_answers_gets_a_503(path, then):
    client = Client(App(END, *then))
    assert_503(await client(path=path), path, ENDED)
    assert client.gate.refused == 0, "it was let in; it counts as ended"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    "then",
    [
        (),
        (chunk(b'data: {"error": "vLLM\'s own"}\n\n'), DONE, LAST),
        (DONE, LAST),
        (LAST,),
        (chunk(b"data: 3\n\n"), LookupError("engine is gone")),
        (LookupError("engine is gone"),),
    ],
    ids=["nothing", "error, done", "done", "last", "chunk, raises", "raises"],
)
async def test_a_stream_that_is_ended_gets_one_error_event_and_no_done(path, then):
    first, second = chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n")
    client = Client(App(SSE, first, second, END, *then))
    sent = await client(path=path)
    assert sent[:3] == [SSE, first, second]
    (last,) = sent[3:]
    assert not last.get("more_body", False)
    assert last["body"] == dialect_of(path).event_bytes(ENDED, 2)
    assert client.body.count(b"event: error") == 1
    assert b"[DONE]" not in client.body


@pytest.mark.parametrize("start", [(), (SSE,)], ids=["plain", "stream"])
async def test_the_client_is_told_the_first_reason(start):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in start:
            await send(message)
        for why in (REFUSED, ENDED):
            current_exchange.get().end(why)

    client = Client(app)
    await client()
    assert REFUSED.encode() in client.body
    assert ENDED.encode() not in client.body


async def test_a_stream_that_is_ended_before_its_first_event_is_one_too():
    client = Client(App(SSE, END, DONE, LAST))
    sent = await client(path=RESPONSES)
    assert sent[0] == SSE
    assert len(sent) == 2
    assert sent[1]["body"] == dialect_of(RESPONSES).event_bytes(ENDED, 0)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Content-Type", b"text/event-stream")],
        [(b"x-request-id", b"1"), (b"content-type", b"text/event-stream")],
    ],
)
async def test_a_stream_is_known_by_its_content_type(headers):
    start = SSE | {"headers": headers}
    client = Client(App(start, END, LAST))
    await client()
    assert b"event: error" in client.body


async def test_an_answer_without_headers_is_no_stream():
    start = {"type": "http.response.start", "status": 204}  # ASGI lets them be left out
    client = Client(App(start, LAST))
    assert await client() == [start, LAST]


async def test_a_plain_answer_that_has_begun_passes_whole():
    script = (PLAIN, chunk(b'{"a":'), END, chunk(b" 1}", more=False))
    client = Client(App(*script))
    assert await client() == [PLAIN, script[1], script[3]]


@pytest.mark.parametrize("start", [SSE, PLAIN], ids=["stream", "plain"])
@pytest.mark.parametrize("then", [(), (LookupError("in its clean-up"),)])
async def test_an_answer_that_is_over_is_not_touched(start, then):
    client = Client(App(start, DONE, LAST, END, *then))
    assert await client() == [start, DONE, LAST]


async def test_the_trailers_of_an_answer_that_is_over_are_not_touched_either():
    trailers = {"type": "http.response.trailers", "headers": [(b"x-sum", b"1")]}
    script = (SSE | {"trailers": True}, LAST, END, trailers)
    client = Client(App(*script))
    assert await client() == [script[0], script[1], trailers]


async def test_an_app_that_fails_by_itself_fails_aloud():
    error = LookupError("a bug")
    for before in ((), (SSE, chunk(b"data: 1\n\n"))):
        client = Client(App(*before, error))
        with pytest.raises(LookupError) as caught:
            await client()
        assert caught.value is error
        assert client.sent == list(before)


async def test_a_cancelled_exchange_stays_cancelled():
    client = Client(App(END, asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        await client()


async def test_each_exchange_is_ended_by_itself():
    gate = Gate(Tally(), 7)
    go = asyncio.Event()
    ended = Client(App(SSE, go, END, DONE, LAST), gate)
    other = Client(App(SSE, go, DONE, LAST), gate)
    requests = asyncio.gather(ended(), other())
    await asyncio.sleep(0)
    go.set()
    await requests
    assert b"event: error" in ended.body
    assert other.sent == [SSE, DONE, LAST]


# -- what the engine side sees -----------------------------------------------------


async def test_the_engine_side_finds_the_exchange_of_its_request_and_only_there():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current_exchange.get())

    client = Client(app)
    await client()
    await client()
    first, second = seen
    assert first is not second
    assert (first.admitted, first.ended) == (True, False)
    assert current_exchange.get() is None


@pytest.mark.parametrize("error", [None, LookupError("a bug")])
async def test_an_exchange_counts_until_its_last_byte_is_sent(error):
    gate = Gate(Tally(), 7)
    sending, sent, closing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Client):
        async def send(self, message: Any) -> None:
            if message is LAST:
                sending.set()
                await sent.wait()
            await super().send(message)

    client = Slow(App(SSE, LAST, closing, *([error] if error else [])), gate)
    request = asyncio.ensure_future(client())
    await sending.wait()
    idle = asyncio.ensure_future(gate.tally.idle())
    await asyncio.sleep(0)
    assert gate.tally.in_flight == 1
    assert not idle.done()
    sent.set()
    closing.set()
    await asyncio.wait([request])
    assert request.exception() is error
    await asyncio.wait_for(idle, 5)
    assert gate.tally.in_flight == 0


async def test_the_terminal_event_counts_as_the_last_byte():
    gate = Gate(Tally(), 7)
    in_flight = []

    class Watching(Client):
        async def send(self, message: Any) -> None:
            in_flight.append(gate.tally.in_flight)
            await super().send(message)

    await Watching(App(SSE, END), gate)()
    assert in_flight == [1, 1]
    assert gate.tally.in_flight == 0


@pytest.mark.parametrize(
    ("method", "kind"), [("GET", "http"), ("POST", "websocket"), ("POST", "lifespan")]
)
async def test_what_a_drain_does_not_wait_for_does_not_count(method, kind):
    gate = Gate(Tally(), 7)
    counted = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        counted.append(gate.tally.in_flight)

    await Client(app, gate)(method, kind=kind)
    assert counted == [0]
