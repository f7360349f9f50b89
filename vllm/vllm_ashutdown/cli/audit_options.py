"""What ``vllm-ashutdown audit`` takes, without what it needs to do it."""

from __future__ import annotations

import argparse

from ..audit.plan import FIRST_TOKENS, START_SECONDS, How, Whom

__all__ = ["add_options", "option_names"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes besides the server's own."""
    stop = parser.add_argument_group("the stop")
    stop.add_argument(
        "--stop", choices=[*map(str, How)], default="term", help="default: term"
    )
    stop.add_argument(
        "--target",
        choices=[*map(str, Whom)],
        default="top",
        help="the process that was started, or its whole group (default: top)",
    )
    when = stop.add_mutually_exclusive_group()
    when.add_argument(
        "--after",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="let the streams flow for so long before the stop (default: 0)",
    )
    when.add_argument(
        "--at",
        type=seconds,
        metavar="SECONDS",
        help="stop so long after the start instead, ready or not, without streams",
    )
    stop.add_argument(
        "--limit",
        type=positive,
        metavar="SECONDS",
        help="a stop that takes longer hangs (default: the command's "
        "--shutdown-timeout and 30 more)",
    )
    load = parser.add_argument_group("the load")
    load.add_argument(
        "--streams", type=count, default=8, metavar="N", help="default: 8; 0 for none"
    )
    load.add_argument(
        "--tokens",
        type=length,
        default=4096,
        metavar="N",
        help="the length of each answer, if the model allows it (default: 4096)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--stock", action="store_true", help="vLLM's own stop: VLLM_ASHUTDOWN=0"
    )
    which.add_argument(
        "--compare", action="store_true", help="vLLM's own stop first, then this one"
    )
    parser.add_argument(
        "--start-limit",
        type=positive,
        default=START_SECONDS,
        metavar="SECONDS",
        help="a start that takes longer has failed (default: 600)",
    )
    parser.add_argument("--json", metavar="FILE", help="write all of it there as well")
    parser.add_argument(
        "server",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="what starts the server, behind --; its own options say where it answers",
    )


def option_names() -> frozenset[str]:
    """All of them, as they are written."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    names = set(vars(parser.parse_args([]))) - {"server"}
    return frozenset("--" + name.replace("_", "-") for name in names)


def seconds(text: str) -> float:
    """A span of time, 0 or more and finite."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise _wrong(text, "seconds, 0 or more")
    return value


def positive(text: str) -> float:
    """One that is more than nothing."""
    value = seconds(text)
    if not value:
        raise _wrong(text, "seconds, more than 0")
    return value


def count(text: str) -> int:
    """A number, 0 or more."""
    if not text.strip().isdecimal():
        raise _wrong(text, "a whole number, 0 or more")
    return int(text)


def length(text: str) -> int:
    """How many tokens, so that a stream is not over before the stop."""
    value = count(text)
    if value <= FIRST_TOKENS:
        raise _wrong(text, f"more than {FIRST_TOKENS}: so many come before the stop")
    return value


def _wrong(text: str, wanted: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} is not what is wanted: {wanted}")
