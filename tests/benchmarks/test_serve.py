"""The benchmark of serving: how it reads a stream, and what it makes of rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from benchmarks import serve
from benchmarks.serve import Measured, Round, StreamError, one_stream, rows

PIECE = 'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n'
LAST = 'data: {"choices":[{"text":"x","finish_reason":"length"}]}\n\n'
DONE = "data: [DONE]\n\n"


def read(text: str, status: int = 200) -> list[float]:
    """What is made of that answer."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=text)

    async def run() -> list[float]:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as one:
            return await one_stream(one, 0, 3)

    return asyncio.run(run())


def test_a_whole_stream_has_a_gap_less_than_pieces():
    gaps = read(PIECE + PIECE + LAST + DONE)
    assert len(gaps) == 2
    assert all(gap >= 0 for gap in gaps)


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        (PIECE + LAST, 200, "without"),
        (PIECE + PIECE + DONE, 200, "before its 3 tokens"),
        (DONE, 200, "before its 3 tokens"),
        ("", 503, "503"),
    ],
)
def test_a_stream_that_is_not_whole_is_no_measurement(text, status, why):
    with pytest.raises(StreamError, match=why):
        read(text, status)


def test_the_ratio_is_of_each_round_and_not_of_all():
    rounds = [
        Round(1, Measured(100.0 * n, 0.01, 0.003), Measured(50.0 * n, 0.02, 0.003))
        for n in (1, 2, 30, 4, 5, 6)
    ]
    throughput, latency, processor = rows(rounds)
    assert throughput[-1] == "2.000 [2.000, 2.000]"
    assert latency[1:] == ("10.000", "20.000", "0.500 [0.500, 0.500]")
    assert processor[-1] == "1.000 [1.000, 1.000]"


def test_a_stream_that_fails_is_the_exit_code(monkeypatch, capsys):
    def fails(*_: object) -> Callable[[], None]:
        raise StreamError("a stream ended without [DONE]")

    monkeypatch.setattr(serve, "measure_pair", fails)
    assert serve.main(["--pairs", "1"]) == 1
    assert "without [DONE]" in capsys.readouterr().out


def test_one_token_has_no_latency(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--tokens", "1"])
    assert "no latency" in capsys.readouterr().err


def test_latency_is_of_tokens_and_not_of_pieces(monkeypatch):
    async def in_two_pieces(*_: object) -> list[float]:
        return [0.9]

    monkeypatch.setattr(serve, "one_stream", in_two_pieces)
    measured = asyncio.run(serve.measure("http://x", streams=2, tokens=10))
    assert measured.latency == pytest.approx(0.1)
