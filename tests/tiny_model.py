"""A model for tests that counts: small, fast, and in whose text every token shows.

A random model is fast but says nothing about its own output: a token that a shutdown
lost, doubled or handed to the wrong stream looks like any other. This one counts on
from the last number of its prompt, one token a number, ``000`` after ``999``, and never
ends by itself::

    "Count on from 417"  ->  " 418 419 420 421 422"

So a test chooses each stream's numbers through its prompt, and `counts` says whether
an answer is whole; no undisturbed run is needed to compare with. A prompt that ends in
something else starts the count at a number that its last byte decides.

How it works. The output row of each number is the embedding of what comes before it,
so the right token wins by a wide margin: in float32 as in bfloat16, alone as in any
batch. Around that stand two ordinary Llama layers with random weights (attention, KV
cache and all), whose noise the margin absorbs.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from vllm_ashutdown.demo.checkpoint import build_once, cache_directory

__all__ = [
    "NUMBERS",
    "POSITIONS",
    "counts",
    "numbers",
    "tiny_model",
]

#: Most tokens of a prompt and its answer together: more than a minute of them at the
#: pace of `tests.pace`, longer than any client waits.
POSITIONS = 8192

#: How many numbers there are: after the last one comes the first.
NUMBERS = 1000

_START, _END = "<|start|>", "<|end|>"
_SPECIAL = (_START, _END)

# Four heads and two key-value heads, so that two tensor-parallel workers can share.
_HEADS, _KV_HEADS, _HEAD_DIM, _FEED_FORWARD, _LAYERS = 4, 2, 64, 256, 2
_HIDDEN = _HEADS * _HEAD_DIM

# Several times what the layers add to it: their noise stays noise.
_EMBEDDING_SCALE = 6.0

# The last message ends the prompt, so that the count goes on from its last number.
_CHAT_TEMPLATE = (
    "{{ '<|start|>' }}"
    "{% for message in messages %}"
    "{{ '\n' + message['role'] + ': ' + message['content'] }}"
    "{% endfor %}"
)


def tiny_model(directory: Path | None = None) -> Path:
    """The counting model as a checkpoint that vLLM can load.

    Made in well under a second, without torch, and then kept. The same source makes
    the same bytes; another source makes the model again.

    Args:
        directory: Where to put it; the user's cache directory if None.

    Returns:
        The checkpoint's directory: pass it to vLLM as the model.

    Raises:
        FileExistsError: `directory` holds something else.
        OSError: The place cannot be written.
    """
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    return build_once(directory or cache_directory() / f"tiny-{key}", key, _build)


def numbers(text: str) -> list[int]:
    """The numbers in an answer of the tiny model, in order: one for each token.

    Raises:
        ValueError: The text has something in it that the model never says.
    """
    words = text.split(" ")
    if words[0] or not all(len(word) == 3 and word.isdecimal() for word in words[1:]):
        raise ValueError(f"not a whole answer of the tiny model: {text!r}")
    return [int(word) for word in words[1:]]


def counts(text: str) -> bool:
    """Whether an answer of the tiny model is whole as far as it goes.

    True if each number follows the one before it: no token was lost, doubled, or
    came from another stream. An answer that was cut short still counts.

    Raises:
        ValueError: The text has something in it that the model never says.
    """
    said = numbers(text)
    return said == [(said[0] + step) % NUMBERS for step in range(len(said))]


def _build(target: Path) -> None:
    vocabulary, merges = _vocabulary()
    _write_tokenizer(target, vocabulary, merges)
    _write_configuration(target, vocabulary)
    save_file(
        _weights(vocabulary), target / "model.safetensors", metadata={"format": "pt"}
    )


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    # The byte-level alphabet writes a space as "Ġ". " 417" is one token, made by three
    # merges from the left; all other text falls apart into bytes.
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    digits = "0123456789"
    prefixes = ["Ġ"]
    for _ in range(3):
        pairs = [(prefix, digit) for prefix in prefixes for digit in digits]
        prefixes = [prefix + digit for prefix, digit in pairs]
        merges += pairs
        tokens += prefixes
    return {token: number for number, token in enumerate(tokens)}, merges


def _successor(token: str, index: int) -> str:
    # "Ġ7" and "Ġ42" are numbers too; other tokens start somewhere in the upper half,
    # each number at most once, which keeps the margins wide.
    is_number = token.startswith("Ġ") and token != "Ġ"
    number = int(token[1:]) + 1 if is_number else NUMBERS // 2 + index
    return f"Ġ{number % NUMBERS:03}"


def _write_tokenizer(
    target: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]
) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in _SPECIAL]
    )
    # For completions; vLLM adds no special tokens to a chat, whose template has them.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A",
        pair=f"{_START} $A $B",
        special_tokens=[(_START, vocabulary[_START])],
    )
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _START,
            "eos_token": _END,
            "pad_token": _END,
            "chat_template": _CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": POSITIONS,
        },
    )


def _write_configuration(target: Path, vocabulary: dict[str, int]) -> None:
    _write_json(
        target / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": vocabulary[_START],
            "eos_token_id": vocabulary[_END],
            "pad_token_id": vocabulary[_END],
            "head_dim": _HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": _HIDDEN,
            "intermediate_size": _FEED_FORWARD,
            "max_position_embeddings": POSITIONS,
            "mlp_bias": False,
            "num_attention_heads": _HEADS,
            "num_hidden_layers": _LAYERS,
            "num_key_value_heads": _KV_HEADS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "vocab_size": len(vocabulary),
        },
    )


def _weights(vocabulary: dict[str, int]) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed=7)

    def normal(rows: int, columns: int, scale: float) -> NDArray[np.float32]:
        return scale * random.standard_normal((rows, columns), dtype=np.float32)

    embedding = normal(len(vocabulary), _HIDDEN, _EMBEDDING_SCALE)
    # Zero rows for all that the model never says: they lose to any successor.
    head = np.zeros_like(embedding)
    for token, index in vocabulary.items():
        head[vocabulary[_successor(token, index)]] += embedding[index]
    head /= _EMBEDDING_SCALE

    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(_HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    scale = _HIDDEN**-0.5  # keeps a unit vector a unit vector
    for layer in range(_LAYERS):
        shapes = {
            "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
            "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
            "mlp.gate_proj": (_FEED_FORWARD, _HIDDEN),
            "mlp.up_proj": (_FEED_FORWARD, _HIDDEN),
            "mlp.down_proj": (_HIDDEN, _FEED_FORWARD),
        }
        for name, (rows, columns) in shapes.items():
            key = f"model.layers.{layer}.{name}.weight"
            weights[key] = normal(rows, columns, scale)
        for name in ("input_layernorm", "post_attention_layernorm"):
            key = f"model.layers.{layer}.{name}.weight"
            weights[key] = np.ones(_HIDDEN, np.float32)
    return weights


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
