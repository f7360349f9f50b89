"""Actors of Ray's that have a real engine, of either class; workers import them."""

from __future__ import annotations

import os

import psutil
import ray

from tests.hosts.cells import aask, ask, make, make_engine


def family() -> list[int]:
    """This process and all below it."""
    children = psutil.Process().children(recursive=True)
    return [os.getpid(), *(one.pid for one in children)]


class WithLLM:
    """Its methods run one at a time."""

    def __init__(self) -> None:
        self.llm = make()

    def ask(self) -> list[int]:
        """A call whose answer is right; who is there while it runs."""
        ask(self.llm)
        return family()

    def leave(self) -> None:
        ray.actor.exit_actor()


class WithAsyncLLM:
    """Its methods are coroutines on the actor's own loop."""

    def __init__(self) -> None:
        self.engine = make_engine()

    async def ask(self) -> list[int]:
        """As of the other."""
        await aask(self.engine, "r")
        return family()

    async def leave(self) -> None:
        ray.actor.exit_actor()

    async def close(self) -> bool:
        """Closes the engine, whether or not the actor goes; says if that was clean."""
        return bool((await self.engine.ashutdown()).clean)
