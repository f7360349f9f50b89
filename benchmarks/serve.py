"""Throughput and inter-token latency of real servers, with the plugin and without.

    python benchmarks/serve.py                          # 2 pairs of servers, 10 rounds
    python benchmarks/serve.py --pairs 1 --rounds 6 --streams 2 --tokens 50

A pair is one server of each kind, and both live at the same time. A round puts the same
load on one and then on the other, in turns who comes first; so what else the machine
does is in both. Each round gives a ratio, with the plugin to without; 1 in the interval
means that no cost was seen. The tests' tiny model
runs as fast as the machine can, without the pace that the tests give it, since a cost
would hide in its pauses.

A measurement, not a judgement: the exit code is 1 only if a stream failed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console

# The harness is the tests' own, and neither need be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from benchmarks.figures import FEWEST, Median
from benchmarks.output import add_json_to, count, table_of, write_json
from tests import pace
from tests.clients import request
from tests.server import Server

PATH = "/v1/completions"
WITH, WITHOUT = "with", "without"
PATIENCE = 120.0
"""Seconds after which a stream is said to have failed."""


class StreamError(Exception):
    """Raised when a server did not give a stream all of its tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one server.

    Attributes:
        throughput: Tokens a second, of all streams together.
        latency: Seconds from one token of a stream to the next, in the mean, and of
            all streams the median: pieces come in bursts on a busy machine.
        processor: Seconds of a processor for each token, of all processes together:
            what else the machine does is not in there.
    """

    throughput: float
    latency: float
    processor: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """The same load on both servers of a pair."""

    pair: int
    loaded: Measured
    bare: Measured


def main(argv: Sequence[str] | None = None) -> int:
    """Measures; gives the exit code."""
    arguments = build_parser().parse_args(argv)
    console = Console()
    rounds: list[Round] = []
    try:
        for pair in range(1, arguments.pairs + 1):
            with (
                console.status(f"pair {pair} of {arguments.pairs}"),
                ExitStack() as stack,
            ):
                rounds += measure_pair(
                    stack, pair, arguments.rounds, arguments.streams, arguments.tokens
                )
            console.print(f"pair {pair}/{arguments.pairs}: done", highlight=False)
    except StreamError as error:
        console.print(f"error: {error}", style="red", highlight=False)
        return 1
    console.print(
        table_of(
            f"{arguments.streams} streams of {arguments.tokens} tokens, "
            f"{len(rounds)} rounds",
            ("", WITH, WITHOUT, "ratio [95 %]"),
            list(rows(rounds)),
        )
    )
    write_json(arguments.json, [asdict(one) for one in rounds])
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="What the plugin costs while nothing stops: servers side by side.",
        epilog="Exit code: 0, or 1 if a stream failed.",
    )
    parser.add_argument("--pairs", type=count, default=2, help="of servers; default: 2")
    parser.add_argument(
        "--rounds",
        type=count,
        default=10,
        help=f"on each pair; an interval takes {FEWEST} in all (default: 10)",
    )
    parser.add_argument(
        "--streams", type=count, default=8, help="at a time; default: 8"
    )
    parser.add_argument(
        "--tokens",
        type=_several,
        default=200,
        help="of each stream, 2 or more; default: 200",
    )
    add_json_to(parser)
    return parser


def _several(text: str) -> int:
    number = count(text)
    if number < 2:
        raise argparse.ArgumentTypeError("one token has no latency to the next")
    return number


def measure_pair(
    stack: ExitStack, pair: int, rounds: int, streams: int, tokens: int
) -> Iterator[Round]:
    """Starts two servers and loads them in turns.

    Raises:
        StreamError: a stream did not get all of its tokens.
    """
    servers = {}
    for arm, switch in ((WITH, "1"), (WITHOUT, "0")):
        directory = tempfile.TemporaryDirectory(prefix="serve-")
        place = Path(stack.enter_context(directory))
        environment = {"VLLM_ASHUTDOWN": switch, pace.VARIABLE: "0"}
        servers[arm] = stack.enter_context(Server(place, environment=environment))
    for server in servers.values():  # what comes first is slow for reasons of its own
        measure_server(server, streams, tokens)
    for number in range(rounds):
        arms = (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH)
        found = {arm: measure_server(servers[arm], streams, tokens) for arm in arms}
        yield Round(pair, found[WITH], found[WITHOUT])


def measure_server(server: Server, streams: int, tokens: int) -> Measured:
    """Puts that load on a server.

    Raises:
        StreamError: a stream did not get all of its tokens.
    """
    before = _processor_seconds(server)
    found = asyncio.run(measure(server.address.url, streams, tokens))
    spent = _processor_seconds(server) - before
    return replace(found, processor=spent / (streams * tokens))


def _processor_seconds(server: Server) -> float:
    times = [one.cpu_times() for one in server.watch.processes]
    return sum(one.user + one.system for one in times)


async def measure(url: str, streams: int, tokens: int) -> Measured:
    """Puts that load on a server.

    Raises:
        StreamError: a stream did not get all of its tokens.
    """
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(
        base_url=url, timeout=PATIENCE, limits=limits
    ) as client:
        began = time.perf_counter()
        gaps = await asyncio.gather(
            *(
                one_stream(client, 100 * number % 1000, tokens)
                for number in range(streams)
            )
        )
        seconds = time.perf_counter() - began
    return Measured(
        streams * tokens / seconds,
        statistics.median(sum(own) / (tokens - 1) for own in gaps),
    )


async def one_stream(client: httpx.AsyncClient, start: int, tokens: int) -> list[float]:
    """The seconds between the pieces of one stream.

    Raises:
        StreamError: it did not get all of its tokens.
    """
    body = request(PATH, stream=True, start=start, tokens=tokens)
    gaps: list[float] = []
    before, last = None, ""
    try:
        async with client.stream("POST", PATH, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                now, said = time.perf_counter(), line.removeprefix("data: ")
                if said == "[DONE]":
                    break
                if before is not None:
                    gaps.append(now - before)
                before, last = now, said
            else:
                raise StreamError("a stream ended without [DONE]")
    except httpx.HTTPError as error:
        raise StreamError(
            f"a stream failed: {type(error).__name__}: {error}"
        ) from error
    if '"finish_reason":"length"' not in last or not gaps:
        raise StreamError(f"a stream ended before its {tokens} tokens: {last}")
    return gaps


def rows(rounds: Sequence[Round]) -> Iterator[tuple[str, ...]]:
    """The table's."""
    for name, label, digits, scale in (
        ("throughput", "tokens a second", 0, 1.0),
        ("latency", "inter-token latency, ms", 3, 1e3),
        ("processor", "processor time a token, ms", 3, 1e3),
    ):
        loaded = [getattr(one.loaded, name) for one in rounds]
        bare = [getattr(one.bare, name) for one in rounds]
        ratio = Median.of_ratios(
            [one / other for one, other in zip(loaded, bare, strict=True)]
        )
        yield (
            label,
            f"{statistics.median(loaded) * scale:,.{digits}f}",
            f"{statistics.median(bare) * scale:,.{digits}f}",
            ratio.text(3),
        )


if __name__ == "__main__":
    sys.exit(main())
