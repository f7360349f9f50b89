"""A part of a campaign, so that several run side by side.

A start of vLLM keeps one processor busy, so two parts on two processors take half the
time. Their servers share /dev/shm; what nobody is seen to map there cannot be told
apart, and goes unnoticed, unless each part has a /dev/shm of its own (``unshare -m``).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Self

__all__ = ["Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th run, from the `index`-th on; the first is 1."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``2/3``. Raises `argparse.ArgumentTypeError` for what is none."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} is not like 1/2")
        if not 1 <= int(index) <= int(count):
            raise argparse.ArgumentTypeError(f"there is no part {index} of {count}")
        return cls(int(index), int(count))

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Adds ``--shard``."""
        parser.add_argument(
            "--shard",
            type=cls.parse,
            default=cls(),
            metavar="I/N",
            help="every N-th run only, from the I-th on: N parts side by side",
        )

    def of(self, runs: int) -> range:
        """The numbers of its runs, of ``runs`` that are numbered from 0."""
        return range(self.index - 1, runs, self.count)
