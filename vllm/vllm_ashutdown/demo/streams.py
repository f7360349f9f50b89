"""The load: eight answers that are being streamed when the signal comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
from openai.types.chat import ChatCompletionChunk

from .checkpoint import MODEL_NAME

PROMPTS = (
    "Tell me a long story about a lighthouse keeper.",
    "Explain to a child how rain is made, in many small steps.",
    "Describe a walk through Paris from morning to night.",
    "Write a long letter from a sailor to his sister.",
    "Explain how bread is baked, and why each step matters.",
    "Tell the story of a fox who wanted to learn the piano.",
    "Describe the planets of the solar system, one by one.",
    "Write a long speech for the opening of a library.",
)

FEWEST_TOKENS = 64

QUESTION = "What is the capital of France?"


def client(port: int) -> openai.OpenAI:
    """An OpenAI client for the server at ``port``, the way any user makes one."""
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="none needed",
        # The demonstration shows what the server says, so nothing is tried again;
        # and a proxy in the environment is not meant for this machine.
        max_retries=0,
        timeout=180,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def ask(api: openai.OpenAI, question: str) -> str:
    """The model's whole answer to one question."""
    answer = api.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": question}],
        max_tokens=40,
        temperature=0,
    )
    return (answer.choices[0].message.content or "").strip()


class Stream:
    """One streamed answer, read by a thread of its own.

    Attributes:
        prompt: What was asked.
        text: What has come so far.
        tokens: How many tokens that is: as the server counts them where the
            stream came to its end, else one a chunk.
        finish_reason: The server's, if the answer is whole.
        done: ``[DONE]`` came.
        error: What the client raised, if it did.
        over: Set when nothing more will come.
        over_at: When that was, by the monotonic clock.
    """

    def __init__(self, api: openai.OpenAI, prompt: str, max_tokens: int) -> None:
        """Opens nothing yet: :meth:`start` does."""
        self.prompt = prompt
        self.text = ""
        self.tokens = 0
        self.finish_reason: str | None = None
        self.done = False
        self.error: Exception | None = None
        self.over = threading.Event()
        self.over_at = 0.0
        self._api = api
        self._max_tokens = max_tokens
        self._moved = threading.Condition()

    def start(self) -> None:
        """Sends the request and begins to read."""
        threading.Thread(target=self._read, name="stream", daemon=True).start()

    def wait_for(self, tokens: int, seconds: float) -> bool:
        """Waits until so many tokens have come; false if they did not."""
        with self._moved:
            return self._moved.wait_for(
                lambda: self.tokens >= tokens or self.over.is_set(), seconds
            )

    @property
    def completed(self) -> bool:
        """The answer is whole, and the server said so in both ways."""
        return self.error is None and self.done and self.finish_reason is not None

    @property
    def ended(self) -> bool:
        """The server cut it and said so: the typed error, and no ``[DONE]``."""
        return not self.done and _code(self.error) == 503

    def _read(self) -> None:
        try:
            for chunk in self._open():
                self._take(chunk)
        except Exception as error:  # whatever it is, it is this stream's result
            self.error = error
        finally:
            with self._moved:
                self.over_at = time.monotonic()
                self.over.set()
                self._moved.notify_all()

    def _open(self) -> _Watched:
        raw = self._api.chat.completions.with_raw_response.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": self.prompt}],
            max_tokens=self._max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            temperature=0.6,
            # A shorter answer would be over before the signal comes.
            extra_body={"min_tokens": FEWEST_TOKENS},
        )
        stream = raw.parse(to=_Watched)
        stream.saw_done = self._saw_done
        return stream

    def _saw_done(self) -> None:
        self.done = True

    def _take(self, chunk: ChatCompletionChunk) -> None:
        with self._moved:
            for choice in chunk.choices:
                if choice.delta.content:
                    self.text += choice.delta.content
                    self.tokens += 1
                self.finish_reason = choice.finish_reason or self.finish_reason
            if chunk.usage is not None:
                self.tokens = chunk.usage.completion_tokens
            self._moved.notify_all()


class _Watched(openai.Stream[ChatCompletionChunk]):
    """The client's stream, which also tells when ``[DONE]`` came.

    The client keeps that to itself: for it, a connection that just ends is an
    end like any other. Here it is the difference that counts.
    """

    saw_done: Callable[[], None]

    def _iter_events(self) -> Iterator[Any]:
        for event in super()._iter_events():
            if event.data.startswith("[DONE]"):
                self.saw_done()
            yield event


def _code(error: Exception | None) -> int | None:
    body = error.body if isinstance(error, openai.APIError) else None
    code = body.get("code") if isinstance(body, dict) else None
    return code if isinstance(code, int) else None


def describe(error: Exception) -> str:
    """A stream's error in one line: its class, its code, its message."""
    code = _code(error)
    kind = type(error).__name__
    message = " ".join(str(error).split())
    return f"{kind} {code}: {message}" if code else f"{kind}: {message}"
