"""Rollouts and training by turns, in one process: each has the memory to itself.

    VLLM_ENABLE_V1_MULTIPROCESSING=0 MODEL=... python training_loop.py

The engine is closed before the training step, and its weights and KV cache are free by
then. A new one reads the weights that the step has written.
"""

import os

import torch

from vllm import LLM, SamplingParams

PROMPTS = ["Count on from 417", "Count on from 120"]


def rollout(model: str) -> list[str]:
    """What the model says by now."""
    params = SamplingParams(max_tokens=16, temperature=0)
    with LLM(model, enforce_eager=True) as llm:
        answers = llm.generate(PROMPTS, params, use_tqdm=False)
    return [answer.outputs[0].text for answer in answers]


def train(answers: list[str]) -> float:
    """Stands for a training step, which wants all of the memory."""
    weights = torch.ones(1000, requires_grad=True)
    loss = (weights * len("".join(answers))).mean()
    loss.backward()
    return loss.item()


if __name__ == "__main__":
    for step in range(3):
        answers = rollout(os.environ["MODEL"])
        print(f"step {step}: loss {train(answers):.1f}, {answers[0]!r}")
