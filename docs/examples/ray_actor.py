"""An engine in a Ray actor, closed in order before the actor goes.

    MODEL=... python ray_actor.py

``ray.kill`` gives an actor no time: what it has begun is killed with it. So the engine
is closed by a call of the actor's own, and the actor is killed once that is over.
"""

import os
import uuid

import ray
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from vllm import SamplingParams


@ray.remote
class Engine:
    """Answers prompts, many at a time: each call is a coroutine on the actor's loop."""

    def __init__(self, model: str) -> None:
        arguments = AsyncEngineArgs(
            model=model, enforce_eager=True, gpu_memory_utilization=0.5
        )
        self.engine = AsyncLLM.from_engine_args(arguments)

    async def complete(self, prompt: str, tokens: int = 16) -> str:
        """The whole answer to ``prompt``."""
        params = SamplingParams(max_tokens=tokens, temperature=0)
        text = ""
        async for output in self.engine.generate(prompt, params, uuid.uuid4().hex):
            text = output.outputs[0].text
        return text

    async def close(self, drain_seconds: float = 30) -> str:
        """Lets what is in flight run on for so long; then all is given back."""
        return (await self.engine.ashutdown(drain_seconds)).summary


if __name__ == "__main__":
    ray.init()
    actor = Engine.remote(os.environ["MODEL"])
    prompts = ["Count on from 417", "Count on from 120"]
    answers = ray.get([actor.complete.remote(prompt) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        print(prompt, "->", answer)
    print(ray.get(actor.close.remote()))
    ray.kill(actor)
    ray.shutdown()
