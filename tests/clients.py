"""Clients of a server that is stopped under them, and what each one saw.

The raw ones keep every byte as it stood on the wire; the others are the real OpenAI and
Anthropic clients, without retries, and show what a user's program sees. All of them run
on one event loop in a thread of its own. With a thread for each, eight fast streams
keep the interpreter's lock from the others for seconds.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

import anthropic
import openai

from tests.address import HOST, Address
from tests.pace import tokens_for

__all__ = ["CUT", "LONG", "TYPED", "WHOLE", "Answer", "Call", "Clients"]

TIMEOUT = 60.0
"""Longer than any stop: a client that waits for ever is the server's failure."""

LONG = tokens_for(32)
"""Tokens: half a minute and more, so that the stream is in flight for sure."""

TYPED = "typed 503"
"""How a raw stream ends that the stop has ended: one terminal event, and no more."""

CUT = "connection cut"
"""How a raw stream ends whose server is gone: not as HTTP says that it must."""

WHOLE = "whole"
"""How a raw stream ends that ran to its own end."""

FAREWELLS = (("", "[DONE]"), "response.completed", "message_stop")
"""The last event of a stream that is whole, by its name or as it stands."""

ENOUGH = ("length", "max_tokens", "incomplete")
"""What each API calls the end of a stream that has all the tokens it asked for."""

PREAMBLE = 4096
"""More bytes than any API sends of a stream before its first text."""

LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass
class Answer:
    """What one call got.

    Attributes:
        text: All of the text.
        finish_reason: As the API has it; None while there is none.
        status: Of a raw call: the HTTP status,
        headers: the headers, with names in lower case,
        events: each event's name (empty for none) and data,
        body: what came instead of events, as JSON,
        complete: and whether the answer ended as HTTP says that it must.
        error: What the call raised.
        last_byte_at: When it saw the last byte, on `time.monotonic`.
        flowing: Set with the first text, and at the end in any case.
        over: Set at the end.
    """

    text: str = ""
    finish_reason: str | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    body: Any = None
    complete: bool = False
    error: Exception | None = None
    last_byte_at: float = 0.0
    flowing: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def add(self, text: str | None) -> None:
        """One more piece of the text."""
        if text:
            self.text += text
            self.flowing.set()

    @property
    def saw_done(self) -> bool:
        """Whether the stream said that it was over, in its API's way."""
        return any(event in FAREWELLS or event[0] in FAREWELLS for event in self.events)

    @property
    def end(self) -> str:
        """How a raw stream ended, in a few words; the promised ends are constants."""
        errors = [json.loads(data) for name, data in self.events if name == "error"]
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}"
        if self.status != HTTPStatus.OK:
            return f"HTTP {self.status}"
        if not self.complete:
            return CUT
        if not errors:
            if not self.saw_done:
                return "cut without a word"
            if self.finish_reason is None:
                return "[DONE] without a finish reason"
            if self.finish_reason not in ENOUGH:
                return f"finish reason {self.finish_reason}"
            return WHOLE
        if len(errors) > 1:
            return f"{len(errors)} terminal events"
        if self.saw_done or self.finish_reason is not None:
            return "a terminal event, and an ordinary end too"
        if self.events[-1][0] != "error":
            return f"a terminal event, and then {self.events[-1][1]}"
        code = errors[0].get("error", {}).get("code")
        return TYPED if code == HTTPStatus.SERVICE_UNAVAILABLE else f"code {code}"


Call = Callable[[Answer], Awaitable[None]]
"""Makes one request and writes down what comes."""


class Clients:
    """All the clients of one server. A context manager."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tls = address.tls()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._openai = openai.AsyncOpenAI(
            base_url=f"{address.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=TIMEOUT,
            http_client=self._http(openai.DefaultAsyncHttpxClient),
        )
        self._anthropic = anthropic.AsyncAnthropic(
            base_url=address.url,
            api_key="none",
            max_retries=0,
            timeout=TIMEOUT,
            http_client=self._http(anthropic.DefaultAsyncHttpxClient),
        )

    def _http(self, client: Any) -> Any:
        options: dict[str, Any] = {"trust_env": False}
        if self._tls is not None:
            options["verify"] = self._tls
        if self._address.uds is not None:
            # What the client stands on is httpx or, in later releases, httpx2.
            library = importlib.import_module(client.__mro__[1].__module__)
            options["transport"] = library.AsyncHTTPTransport(
                uds=str(self._address.uds)
            )
        return client(**options)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        # What a test that failed has left open.
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._openai.close()
        await self._anthropic.close()

    # -- making calls ----------------------------------------------------------

    @contextmanager
    def in_flight(self, *calls: Call) -> Iterator[list[Answer]]:
        """Makes all calls at once; at its end all of them are over.

        What a plain call gets comes at its very end: ask the server whether it is
        at work.
        """
        answers = [Answer() for _ in calls]
        made = [
            asyncio.run_coroutine_threadsafe(_make(call, answer), self._loop)
            for call, answer in zip(calls, answers, strict=True)
        ]
        yield answers
        for future in made:
            future.result(TIMEOUT)

    @contextmanager
    def flowing(self, *calls: Call) -> Iterator[list[Answer]]:
        """Makes these calls, of streams, and begins with all of them under way."""
        with self.in_flight(*calls) as answers:
            self.flow(answers)
            over = [answer for answer in answers if answer.over.is_set()]
            assert not over, f"{len(over)} streams are over already"
            yield answers

    def flow(self, answers: list[Answer], seconds: float = 60.0) -> None:
        """Returns when each of these streams has brought some text."""
        deadline = time.monotonic() + seconds
        for answer in answers:
            answer.flowing.wait(max(0.0, deadline - time.monotonic()))
        silent = [one for one in answers if one.error or not one.flowing.is_set()]
        assert not silent, f"{len(silent)} streams do not flow: {silent[:1]}"

    def until_unhealthy(self) -> Future[float]:
        """Asks for ``/health`` again and again until the answer is 503.

        Returns:
            The moment at which that answer came, on `time.monotonic`. Asking begins
            before this returns.
        """
        begun = threading.Event()

        async def ask() -> float:
            while True:
                answer = Answer()
                await self._exchange(b"GET /health HTTP/1.1", b"", answer)
                begun.set()
                if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    return answer.last_byte_at
                await asyncio.sleep(0.002)

        future = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        assert begun.wait(TIMEOUT)
        return future

    # -- plain HTTP, to see what stands on the wire ----------------------------

    def raw_stream(self, path: str, **fields: Any) -> Call:
        """A stream; its events are taken apart when it is over, to load nobody."""
        return self.raw(path, stream=True, **fields)

    def raw(self, path: str, **fields: Any) -> Call:
        """A request whose answer comes whole."""
        body = json.dumps(request(path, **fields)).encode()

        async def call(answer: Answer) -> None:
            content = await self._exchange(
                f"POST {path} HTTP/1.1".encode(), body, answer
            )
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                _take_apart(content.decode(), answer)
            else:
                answer.body = json.loads(content)

        return call

    async def _exchange(self, line: bytes, body: bytes, answer: Answer) -> bytes:
        # By hand: the connection stays open unless the server says otherwise, and a
        # byte costs next to nothing.
        reader, writer = await self._connection()
        try:
            writer.write(
                b"%b\r\nHost: %b\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (line, HOST.encode(), len(body), body)
            )
            status, *fields = (
                (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            )
            answer.status = int(status.split()[1])
            pairs = (name.partition(": ") for name in fields if name)
            answer.headers = {name.lower(): value for name, _, value in pairs}
            if "content-length" in answer.headers:
                content = await reader.readexactly(
                    int(answer.headers["content-length"])
                )
                answer.complete = True
            else:
                content = await _chunks(reader, answer)
            answer.last_byte_at = answer.last_byte_at or time.monotonic()
            return content
        finally:
            writer.close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._address.uds is not None:
            return await asyncio.open_unix_connection(self._address.uds)
        return await asyncio.open_connection(HOST, self._address.port, ssl=self._tls)

    # -- the real clients ------------------------------------------------------

    def completion(self, **fields: Any) -> Call:
        body = request("/v1/completions", **fields)

        async def call(answer: Answer) -> None:
            await self._openai.completions.create(**body)

        return call

    def chat(self, **fields: Any) -> Call:
        body = request("/v1/chat/completions", **fields)

        async def call(answer: Answer) -> None:
            await self._openai.chat.completions.create(**body)

        return call

    def response(self, **fields: Any) -> Call:
        body = request("/v1/responses", **fields)

        async def call(answer: Answer) -> None:
            await self._openai.responses.create(**body)

        return call

    def message(self, **fields: Any) -> Call:
        body = request("/v1/messages", **fields)

        async def call(answer: Answer) -> None:
            await self._anthropic.messages.create(**body)

        return call

    def completion_stream(self, **fields: Any) -> Call:
        body = request("/v1/completions", stream=True, **fields)

        async def call(answer: Answer) -> None:
            async for chunk in await self._openai.completions.create(**body):
                for choice in chunk.choices:
                    answer.add(choice.text)
                    answer.finish_reason = choice.finish_reason or answer.finish_reason

        return call

    def chat_stream(self, **fields: Any) -> Call:
        body = request("/v1/chat/completions", stream=True, **fields)

        async def call(answer: Answer) -> None:
            async for chunk in await self._openai.chat.completions.create(**body):
                for choice in chunk.choices:
                    answer.add(choice.delta.content)
                    answer.finish_reason = choice.finish_reason or answer.finish_reason

        return call

    def response_stream(self, **fields: Any) -> Call:
        body = request("/v1/responses", stream=True, **fields)

        async def call(answer: Answer) -> None:
            async for event in await self._openai.responses.create(**body):
                if event.type == "response.output_text.delta":
                    answer.add(event.delta)
                elif event.type == "response.completed":
                    answer.finish_reason = event.response.status

        return call

    def message_stream(self, **fields: Any) -> Call:
        body = request("/v1/messages", stream=True, **fields)

        async def call(answer: Answer) -> None:
            async for event in await self._anthropic.messages.create(**body):
                if event.type == "content_block_delta":
                    answer.add(event.delta.text)
                elif event.type == "message_delta":
                    answer.finish_reason = event.delta.stop_reason

        return call


def request(
    path: str, start: int = 417, tokens: int = LONG, **more: Any
) -> dict[str, Any]:
    """The body of a request for `tokens` numbers that follow `start`.

    Args:
        path: Of the API.
        start: The last number of the prompt; each stream takes its own.
        tokens: How many.
        more: Other fields of the body.
    """
    prompt = f"Count on from {start:03}"
    body: dict[str, Any] = {"model": "tiny"}
    if path != "/v1/messages":  # Anthropic's client knows of no temperature
        body["temperature"] = 0
    if path == "/v1/completions":
        body |= {"prompt": prompt, "max_tokens": tokens}
    elif path == "/v1/responses":
        body |= {"input": prompt, "max_output_tokens": tokens}
    else:
        message = {"role": "user", "content": prompt}
        body |= {"messages": [message], "max_tokens": tokens}
    return body | more


async def _make(call: Call, answer: Answer) -> None:
    try:
        async with asyncio.timeout(TIMEOUT):
            await call(answer)
    except Exception as error:
        answer.error = error
    answer.last_byte_at = answer.last_byte_at or time.monotonic()
    answer.flowing.set()  # nobody need wait for what has failed
    answer.over.set()


async def _chunks(reader: asyncio.StreamReader, answer: Answer) -> bytes:
    """The content of an answer in chunks, up to where it breaks off."""
    received = bytearray(b"\r\n")
    while not received.endswith(LAST_CHUNK):
        piece = await reader.read(1 << 16)
        if not piece:
            break
        received += piece
        answer.last_byte_at = time.monotonic()
        if len(received) > PREAMBLE:
            answer.flowing.set()
    answer.complete = received.endswith(LAST_CHUNK)
    content, at = bytearray(), 2
    while at < len(received):
        size_line, _, _ = received[at : at + 20].partition(b"\r\n")
        size, at = int(size_line or b"0", 16), at + len(size_line) + 2
        content += received[at : at + size]
        at += size + 2
    return bytes(content)


def _take_apart(stream: str, answer: Answer) -> None:
    """Server-sent events, as far as they came whole."""
    *blocks, _ = stream.split("\n\n")
    for block in blocks:
        fields = [line.partition(": ") for line in block.splitlines()]
        name = next((value for key, _, value in fields if key == "event"), "")
        data = "\n".join(value for key, _, value in fields if key == "data")
        if not data:
            continue
        answer.events.append((name, data))
        if data != "[DONE]":
            _read(name, json.loads(data), answer)


def _read(name: str, data: dict[str, Any], answer: Answer) -> None:
    for choice in data.get("choices", ()):
        answer.add(choice.get("text") or choice.get("delta", {}).get("content"))
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    if name == "response.output_text.delta":
        answer.add(data["delta"])
    elif name == "response.completed":
        answer.finish_reason = data["response"]["status"]
    elif name == "content_block_delta":
        answer.add(data["delta"].get("text"))
    elif name == "message_delta":
        answer.finish_reason = data["delta"]["stop_reason"]
