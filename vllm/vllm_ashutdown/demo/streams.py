"""The load: eight answers that are being streamed when the signal comes."""

from __future__ import annotations

from ..audit.address import Address
from ..audit.streams import Stream
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

CHAT = "/v1/chat/completions"


def ask(address: Address, question: str) -> str:
    """The model's whole answer to one question."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 40,
        "temperature": 0,
    }
    with address.client() as client:
        answer = client.post(CHAT, json=body, timeout=180).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"] or "").strip()


def streams(address: Address, max_tokens: int) -> tuple[Stream, ...]:
    """One for each prompt; nothing is opened yet."""
    return tuple(
        Stream(
            address,
            CHAT,
            {
                "model": MODEL_NAME,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": max_tokens,
                "temperature": 0.6,
                # A shorter answer would be over before the signal comes.
                "min_tokens": FEWEST_TOKENS,
            },
        )
        for prompt in PROMPTS
    )
