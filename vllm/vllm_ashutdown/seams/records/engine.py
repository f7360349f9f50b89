"""The engine: its shutdown, its door, and its end without one."""

from __future__ import annotations

from ..seam import Guard, How, Seam

_ASYNC_LLM = "vllm.v1.engine.async_llm:AsyncLLM"
_OURS = "vllm_ashutdown.adapters"

ENGINE: tuple[Seam, ...] = (
    Seam(
        name="AsyncLLM.shutdown",
        targets=(f"{_ASYNC_LLM}.shutdown",),
        how=How.REPLACE,
        make=f"{_OURS}.async_llm:make_shutdown",
        why="It stops the core before the output handler, which then finds its "
        "core gone and logs a dead engine; callers of generate() wait for ever.",
        reference="vllm#48745",
        until="vLLM cancels and awaits its output handler before it stops the core",
        guard=Guard(
            parameters=("self", "timeout"),
            reads=("engine_core", "output_handler", "renderer"),
        ),
    ),
    Seam(
        name="AsyncLLM.add_request",
        targets=(f"{_ASYNC_LLM}.add_request",),
        how=How.WRAP,
        make=f"{_OURS}.async_llm:make_add_request",
        why="The engine takes new requests while it stops, so a drain need never "
        "end, and a request that comes as the core dies waits for ever.",
        reference="vllm#24885",
        until="AsyncLLM refuses requests with a typed, retryable error from the "
        "first moment of a shutdown on",
        guard=Guard(
            parameters=("self", "request_id", "prompt", "params"),
            reads=("errored", "_add_request", "RequestOutputCollector"),
        ),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="AsyncLLM.ashutdown",
        targets=(f"{_ASYNC_LLM}.ashutdown",),
        how=How.ADD,
        make=f"{_OURS}.async_llm:make_ashutdown",
        why="There is no shutdown that can be awaited.",
        reference="vllm#24885",
        until="vLLM has a shutdown coroutine of its own",
        needs=("AsyncLLM.shutdown", "AsyncLLM.add_request"),
    ),
    Seam(
        name="AsyncLLM.__aenter__",
        targets=(f"{_ASYNC_LLM}.__aenter__",),
        how=How.ADD,
        make=f"{_OURS}.async_llm:make_aenter",
        why="An engine is not closed where its block ends.",
        reference="vllm#24885",
        until="AsyncLLM is an asynchronous context manager",
        needs=("AsyncLLM.ashutdown",),
    ),
    Seam(
        name="AsyncLLM.__aexit__",
        targets=(f"{_ASYNC_LLM}.__aexit__",),
        how=How.ADD,
        make=f"{_OURS}.async_llm:make_aexit",
        why="An engine is not closed where its block ends.",
        reference="vllm#24885",
        until="AsyncLLM is an asynchronous context manager",
        needs=("AsyncLLM.ashutdown",),
    ),
    Seam(
        name="AsyncLLM.__del__",
        targets=(f"{_ASYNC_LLM}.__del__",),
        how=How.REPLACE,
        make=f"{_OURS}.async_llm:make_del",
        why="It raises out of an engine whose __init__ failed, and at the "
        "interpreter's exit.",
        reference="HiThink GAGE#138",
        until="vLLM's own tolerates a half-built engine and a finalizing interpreter",
        guard=Guard(parameters=("self",), reads=("shutdown",)),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="AsyncLLM.__init__",
        targets=(f"{_ASYNC_LLM}.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.async_llm:make_init",
        why="An engine that is still open at the interpreter's exit must be "
        "closed before modules are taken apart.",
        reference="vllm#28838",
        until="vLLM closes its engines in an atexit hook",
        guard=Guard(parameters=("self", "vllm_config", "executor_class")),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="AsyncMPClient._call_utility_async",
        targets=("vllm.v1.engine.core_client:AsyncMPClient._call_utility_async",),
        how=How.WRAP,
        make=f"{_OURS}.core_client:make_call_utility",
        why="In a second asyncio.run a call such as sleep() waits for ever: its answer "
        "would come on the loop of the first.",
        reference="vllm#24885",
        until="vLLM reads from its core on the loop that is running",
        guard=Guard(
            parameters=("self", "method", "engine"), reads=("utility_results",)
        ),
    ),
    Seam(
        name="OutputProcessor.propagate_error",
        targets=("vllm.v1.engine.output_processor:OutputProcessor.propagate_error",),
        how=How.WRAP,
        make=f"{_OURS}.output_processor:make_propagate_error",
        why="When the core has died, each stream ends with an error and then [DONE], "
        "and each request logs a traceback that is longer than the one before.",
        reference="vllm#24885",
        until="vLLM's handlers end a stream of a dead engine with one error event",
        guard=Guard(parameters=("self", "e"), reads=("request_states", "put")),
    ),
)
