"""``LLM``: closing it, interrupting it, and what it leaves in its program."""

from __future__ import annotations

from ..seam import Guard, How, Seam

_ENGINE = "vllm.v1.engine.llm_engine:LLMEngine"
_LLM = "vllm.entrypoints.llm:LLM"
_MIXINS = (
    "vllm.entrypoints.common.offline:OfflineInferenceMixin",
    "vllm.entrypoints.offline_utils:OfflineInferenceMixin",
)
_OURS = "vllm_ashutdown.adapters"

LIBRARY: tuple[Seam, ...] = (
    Seam(
        name="LLMEngine.step",
        targets=(f"{_ENGINE}.step",),
        how=How.WRAP,
        make=f"{_OURS}.llm_engine:make_step",
        why="A call that is under way when the engine is closed waits for ever, and "
        "Ctrl-C leaves the scheduler of an engine in this process half way.",
        reference="vllm#24885",
        until="LLMEngine has a shutdown that ends the step which is under way",
        guard=Guard(parameters=("self",), reads=("get_output", "process_outputs")),
    ),
    Seam(
        name="LLMEngine.add_request",
        targets=(f"{_ENGINE}.add_request",),
        how=How.WRAP,
        make=f"{_OURS}.llm_engine:make_add_request",
        why="A closed engine takes requests that nobody will ever answer.",
        reference="vllm#24885",
        until="LLMEngine refuses requests once it is shut down",
        guard=Guard(
            parameters=("self", "request_id", "prompt", "params"),
            reads=("engine_core", "output_processor"),
        ),
        needs=("LLMEngine.step",),
    ),
    Seam(
        name="LLMEngine.shutdown",
        targets=(f"{_ENGINE}.shutdown",),
        how=How.ADD,
        make=f"{_OURS}.llm_engine:make_shutdown",
        why="There is no way to close it, but for the garbage collector's.",
        reference="vllm#5716",
        until="vLLM has a shutdown of its own there",
        needs=("LLMEngine.step", "LLMEngine.add_request"),
    ),
    Seam(
        name="LLMEngine.__init__",
        targets=(f"{_ENGINE}.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.llm_engine:make_init",
        why="An engine that is still open at the interpreter's exit must be closed "
        "before modules are taken apart, and Ctrl-C in a program ends its core.",
        reference="vllm#28838",
        until="vLLM closes its engines in an atexit hook",
        guard=Guard(
            parameters=("self", "vllm_config", "executor_class"),
            reads=("engine_core", "output_processor", "renderer"),
        ),
        needs=("LLMEngine.shutdown",),
    ),
    Seam(
        name="LLMEngine.__del__",
        targets=(f"{_ENGINE}.__del__",),
        how=How.WRAP,
        make=f"{_OURS}.llm_engine:make_del",
        why="Weights and KV cache of an engine in this process outlive it.",
        reference="vllm#21073",
        until="vLLM gives everything back when an engine is deleted",
        guard=Guard(parameters=("self",), reads=("dp_group",)),
        needs=("LLMEngine.shutdown",),
    ),
    Seam(
        name="LLM.shutdown",
        targets=(f"{_LLM}.shutdown",),
        how=How.ADD,
        make=f"{_OURS}.llm:make_shutdown",
        why="There is no documented way to give a model's memory back.",
        reference="vllm#5716",
        until="vLLM has a way to close an LLM",
        needs=("LLMEngine.shutdown",),
    ),
    Seam(
        name="LLM.__enter__",
        targets=(f"{_LLM}.__enter__",),
        how=How.ADD,
        make=f"{_OURS}.llm:make_enter",
        why="An engine is not closed where its block ends.",
        reference="vllm#5716",
        until="LLM is a context manager",
        needs=("LLM.shutdown",),
    ),
    Seam(
        name="LLM.__exit__",
        targets=(f"{_LLM}.__exit__",),
        how=How.ADD,
        make=f"{_OURS}.llm:make_exit",
        why="An engine is not closed where its block ends.",
        reference="vllm#5716",
        until="LLM is a context manager",
        needs=("LLM.shutdown",),
    ),
    Seam(
        name="OfflineInferenceMixin._run_engine",
        targets=tuple(f"{mixin}._run_engine" for mixin in _MIXINS),
        how=How.WRAP,
        make=f"{_OURS}.offline:make_run_engine",
        why="After Ctrl-C the next call runs the requests of the one before, and "
        "returns their answers among its own.",
        reference="vllm#24885",
        until="vLLM ends the requests of a call that is interrupted",
        guard=Guard(parameters=("self",), reads=("llm_engine", "step")),
    ),
    Seam(
        name="OfflineInferenceMixin._render_and_add_requests",
        targets=tuple(f"{mixin}._render_and_add_requests" for mixin in _MIXINS),
        how=How.WRAP,
        make=f"{_OURS}.offline:make_add_requests",
        why="The same for a call that is interrupted before its first step.",
        reference="vllm#24885",
        until="vLLM ends the requests of a call that is interrupted",
        guard=Guard(parameters=("self", "prompts", "params"), reads=("_add_request",)),
    ),
)
