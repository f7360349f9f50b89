"""One audit of one stop: start, load, stop, look."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from .. import settings
from ..core.claims import place_in
from ..core.reclaim import Verdict, reclaim
from ..core.report import ShutdownReport
from .address import Address
from .family import Family
from .plan import FIRST_TOKENS, Plan
from .server import Server, ServerFailedError, running
from .streams import Result, Stream
from .traces import Row, Traces
from .verdict import Check, Times, checks

FIRST_TOKENS_SECONDS = 120.0
GONE_SECONDS = 1.0
"""What the last process may take to follow the first one."""

KILLED_SECONDS = 5.0
"""The same where the first was killed: nobody is left to wait for the others."""

READ_SECONDS = 5.0
"""What a dead server has sent is there; this is for it to be read."""

MODEL_ROOM = 64
"""Tokens of a model's length that are left for the prompt."""

PROMPT = "Count on, as far as you can: 1, 2, 3,"


Load = Callable[[Server], Sequence[Stream]]


class Audience(Protocol):
    """Who is shown how far it is."""

    def working(self, text: str) -> AbstractContextManager[Callable[[str], None]]:
        """Something goes on; call what it gives with each stage."""

    def following(
        self, text: str, streams: Sequence[Stream]
    ) -> AbstractContextManager[None]:
        """Streams move."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen.

    Attributes:
        plan: What was done.
        stock: vLLM's own stop, with the plugin switched off.
        ready_after: Seconds from the start until it served; ``None`` if nobody waited.
        exit_code: Its exit code; ``None`` if it hung.
        times: When things were over.
        streams: The answers that were in flight.
        rows: What there was on the machine before, during and after.
        reclaimed: What the next start takes away after a kill.
        report: The server's own.
        lines: The end of its log.
        checks: What it promises, and what was found.
    """

    plan: Plan
    stock: bool
    ready_after: float | None
    exit_code: int | None
    times: Times
    streams: tuple[Result, ...]
    rows: tuple[Row, ...]
    reclaimed: tuple[str, ...]
    report: ShutdownReport | None
    lines: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def clean(self) -> bool:
        """All that it promises was found so."""
        return all(check.kept for check in self.checks)


def audit(
    plan: Plan,
    address: Address,
    directory: Path,
    audience: Audience,
    *,
    load: Load | None = None,
    stock: bool = False,
    begun: Callable[[Server], object] = lambda server: None,
) -> Run:
    """Starts a server, stops it as ``plan`` says, and looks. Nothing of it stays.

    Args:
        plan: What to do.
        address: Where the server will answer.
        directory: Exists and is empty: its place for temporary files.
        audience: Who is shown how far it is.
        load: Makes the streams, once the server serves; none is opened by it.
            Without it they are the plan's.
        stock: Switch the plugin off.
        begun: Told of the server as soon as there is one.

    Raises:
        ServerFailedError: the server did not come up, or its address is taken.
    """
    family = Family()
    traces = Traces(family, directory, address)
    if traces.in_the_way:
        raise ServerFailedError(
            f"{'; '.join(traces.in_the_way)}, and the server is not even begun: stop "
            "what is there, or give the command another --port"
        )
    switch = {settings.ENABLED.name: "0" if stock else "1"}
    with contextlib.ExitStack() as stack:
        stack.callback(traces.take_away)
        with audience.working("Starting the server") as stage:
            begin = partial(
                Server,
                plan.command,
                directory,
                address,
                family,
                environment={**plan.environment, **switch},
                stage=stage,
            )
            server = stack.enter_context(running(begin))
            stack.callback(traces.look)  # whose things are whose, should it be killed
            begun(server)
            if plan.at is None:
                server.wait_ready(plan.start_limit)
            else:
                server.stay_for(plan.at)
        used = load or partial(_load, plan)
        return _stop(plan, server, traces, audience, used, stock=stock)


def _stop(
    plan: Plan,
    server: Server,
    traces: Traces,
    audience: Audience,
    load: Load,
    *,
    stock: bool,
) -> Run:
    ready_after = time.monotonic() - server.started_at if plan.at is None else None
    streams = load(server) if plan.at is None else ()
    with _abandoned_on_the_way_out(streams):
        return _stop_under(plan, server, traces, audience, streams, stock, ready_after)


@contextlib.contextmanager
def _abandoned_on_the_way_out(streams: Sequence[Stream]) -> Iterator[None]:
    """Whoever is interrupted reads no more: a server that drains waits for nobody."""
    try:
        yield
    except BaseException:
        for stream in streams:
            stream.abandon()
        raise


def _stop_under(
    plan: Plan,
    server: Server,
    traces: Traces,
    audience: Audience,
    streams: Sequence[Stream],
    stock: bool,
    ready_after: float | None,
) -> Run:
    for stream in streams:
        stream.start()
    if streams:
        with audience.following(f"Opening {len(streams)} streams", streams):
            deadline = time.monotonic() + FIRST_TOKENS_SECONDS
            for stream in streams:
                stream.wait_for(FIRST_TOKENS, deadline - time.monotonic())
            server.stay_for(plan.after)
    traces.look()
    flowing = sum(stream.result.flowing for stream in streams)
    with audience.following(f"{plan.words}: stopping", streams):
        asked = plan.stop(server)
        in_time = server.ended.wait(max(0.0, asked + plan.most - time.monotonic()))
        gone_at = asked
        if in_time:
            killed = not plan.how.is_orderly
            limit = KILLED_SECONDS if killed else GONE_SECONDS
            gone_at = server.family.gone_within(limit)
        for stream in streams if in_time else ():
            stream.over.wait(READ_SECONDS)
    reclaimed = _next_start(server) if not plan.how.is_orderly else ()
    rows = traces.rows()
    report, problem = _report(server)
    orderly_end = in_time and plan.how.is_orderly and not stock and plan.at is None
    exit_code = server.exit_code if in_time else None
    # Before it is killed, should it hang: that ends whoever waits.
    results = tuple(stream.result for stream in streams)
    alive = any(row.after for row in rows if row.name == "processes")
    ends = [one.over_at - asked for one in results if one.over_at is not None]
    return Run(
        plan=plan,
        stock=stock,
        ready_after=ready_after,
        exit_code=exit_code,
        times=Times(
            min(ends, default=None),
            max(ends, default=None),
            server.ended_at - asked if in_time else None,
            None if alive or not in_time else gone_at - asked,
        ),
        streams=results,
        rows=rows,
        reclaimed=reclaimed,
        report=report,
        lines=tuple(server.lines),
        checks=checks(
            plan,
            exit_code=exit_code,
            streams=results,
            flowing=flowing,
            rows=rows,
            report=report,
            report_problem=problem if orderly_end else "",
        ),
    )


def _load(plan: Plan, server: Server) -> tuple[Stream, ...]:
    model, length = _model(server)
    tokens = plan.tokens
    if length is not None:
        tokens = max(1, min(tokens, length - MODEL_ROOM))
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        # A shorter answer would be over before the stop.
        "ignore_eos": True,
    }
    return tuple(
        Stream(server.address, "/v1/completions", body) for _ in range(plan.streams)
    )


def _model(server: Server) -> tuple[str, int | None]:
    """The name of the first model that it serves, and its length in tokens."""
    import httpx

    with server.address.client() as client:
        try:
            answer = client.get("/v1/models", timeout=FIRST_TOKENS_SECONDS)
            first = answer.raise_for_status().json()["data"][0]
            return str(first["id"]), first.get("max_model_len")
        except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
            raise server.failed(f"{server.address}/v1/models: {error}") from error


def _next_start(server: Server) -> tuple[str, ...]:
    """What the next start on this machine would take away, taken away."""
    found = reclaim(remove=True, directory=place_in(server.directory))
    return tuple(
        f"{one.kind} {one.path}"
        for one in found.leftovers
        if one.verdict is Verdict.REMOVED
    )


def _report(server: Server) -> tuple[ShutdownReport | None, str]:
    text = server.report_text
    if text is None:
        return None, "it wrote none"
    try:
        return ShutdownReport.from_json(text), ""
    except ValueError as error:
        return None, str(error)
