"""What the cells of a notebook call: engines that say when they are at work."""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from tests.hosts.flowing import FLOWING
from tests.tiny_model import counts
from tests.v1.shutdown.library_scenes import make_engine
from tests.v1.shutdown.llm_scenes import ask, is_closed, make
from vllm import LLM, SamplingParams

__all__ = [
    "FLOWING",
    "LONG",
    "aask",
    "ask",
    "is_closed",
    "make",
    "make_engine",
    "telling",
]

LONG = 8000
"""Tokens of a call that nobody lets come to its end."""


def telling(llm: LLM) -> None:
    """Has the next call say :data:`FLOWING`, and no other.

    A call of ``LLM`` gets its tokens all at once, at its end; a step is the least of it
    that shows.
    """
    engine: Any = llm.llm_engine
    step = engine.step

    def first_step() -> Any:
        outputs = step()
        del engine.step
        print(FLOWING)
        return outputs

    engine.step = first_step


async def aask(engine: AsyncLLM, name: str, tokens: int = 24) -> None:
    """A call whose answer is right; it says when it has begun."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    said = text = ""
    async for output in engine.generate("Count on from 417", params, name):
        text = output.outputs[0].text
        if not said:
            said = FLOWING
            print(said)
    assert counts(text), text
