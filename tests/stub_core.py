"""An engine core without an engine: vLLM's own wire protocol over real ZMQ.

It lets vLLM's real ``AsyncMPClient``, output processor and output handler meet,
in milliseconds, orders of events that a real core gives only by luck.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient, MPClient, SyncMPClient
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

IDENTITY = (0).to_bytes(2, "little")
ENDLESS = 1_000_000_000
"""As ``max_tokens``: one token comes, and then never another."""


class StubCore:
    """Speaks for an engine core from a thread of its own.

    A request gets its ``max_tokens`` tokens at once, one message each. One with
    :data:`ENDLESS` gets a single token and then waits for ever.
    """

    def __init__(self, *, answers_utilities: bool = True) -> None:
        self.answers_utilities = answers_utilities
        self._folder = tempfile.TemporaryDirectory(prefix="stub-core-")
        base = Path(self._folder.name)
        self.addresses = {
            "input_address": f"ipc://{base / 'in'}",
            "output_address": f"ipc://{base / 'out'}",
        }
        self.aborted: list[str] = []
        self.added: list[str] = []
        self._news = threading.Condition()
        self._context = zmq.Context()
        self._control = self._context.socket(zmq.PAIR)
        self._control.bind("inproc://control")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def die(self) -> None:
        """Says what a core says whose executor failed."""
        self._control.send(b"die")

    def finish_all(self) -> None:
        """Ends every endless request with a last token."""
        self._control.send(b"finish")

    def wait_for_added(self, count: int) -> None:
        """Blocks until ``count`` requests have come, each with its first token."""
        with self._news:
            self._news.wait_for(lambda: len(self.added) >= count)

    def close(self) -> None:
        """Ends the thread and takes the sockets away."""
        self._control.send(b"stop")
        self._thread.join()
        self._control.close(0)
        self._context.term()
        self._folder.cleanup()

    def _run(self) -> None:
        context = self._context
        control = context.socket(zmq.PAIR)
        control.connect("inproc://control")
        # The client binds; whoever connects a moment too early tries again soon.
        context.setsockopt(zmq.RECONNECT_IVL, 1)
        inputs = context.socket(zmq.DEALER)
        inputs.setsockopt(zmq.IDENTITY, IDENTITY)
        inputs.connect(self.addresses["input_address"])
        self._outputs = context.socket(zmq.PUSH)
        self._outputs.connect(self.addresses["output_address"])
        inputs.send(b"")  # ready
        poller = zmq.Poller()
        poller.register(control, zmq.POLLIN)
        poller.register(inputs, zmq.POLLIN)
        self._endless: dict[str, None] = {}  # in their order, and quick to leave
        while True:
            ready = dict(poller.poll())
            if control in ready:
                order = control.recv()
                if order == b"stop":
                    break
                if order == b"die":
                    self._outputs.send(EngineCoreProc.ENGINE_CORE_DEAD)
                if order == b"finish":
                    for request_id in self._endless:
                        self._emit(request_id, FinishReason.LENGTH)
                    self._endless.clear()
            if inputs in ready:
                kind, *frames = inputs.recv_multipart()
                self._handle(EngineCoreRequestType(bytes(kind)), frames)
        for socket in (control, inputs, self._outputs):
            socket.close(0)

    def _handle(self, kind: EngineCoreRequestType, frames: list[bytes]) -> None:
        if kind is EngineCoreRequestType.ADD:
            request = MsgpackDecoder(EngineCoreRequest).decode(frames)
            self._answer(request.request_id, request.sampling_params.max_tokens)
            with self._news:
                self.added.append(request.request_id)
                self._news.notify_all()
        elif kind is EngineCoreRequestType.ABORT:
            ids = MsgpackDecoder().decode(frames)
            self.aborted += ids
            for one in ids:
                self._endless.pop(one, None)
        elif kind is EngineCoreRequestType.UTILITY and self.answers_utilities:
            _, call_id, _, _ = MsgpackDecoder().decode(frames)
            answer = UtilityOutput(call_id, result=UtilityResult(["generate"]))
            self._send(EngineCoreOutputs(utility_output=answer))

    def _answer(self, request_id: str, count: int) -> None:
        if count == ENDLESS:
            self._endless[request_id] = None
            self._emit(request_id, None)
            return
        for left in reversed(range(count)):
            self._emit(request_id, None if left else FinishReason.LENGTH)

    def _emit(self, request_id: str, finish: FinishReason | None) -> None:
        output = EngineCoreOutput(
            request_id=request_id, new_token_ids=[7], finish_reason=finish
        )
        self._send(EngineCoreOutputs(outputs=[output]))

    def _send(self, outputs: EngineCoreOutputs) -> None:
        self._outputs.send_multipart(MsgpackEncoder().encode(outputs))


class StubRenderer:
    """What the engine reads of a renderer."""

    tokenizer = None
    mm_processor_cache = None

    def __init__(self) -> None:
        self.closed = 0

    def stat_mm_cache(self) -> None:
        """Nothing to tell."""

    def shutdown(self) -> None:
        """Counts how often it was closed."""
        self.closed += 1


class StubInputProcessor:
    """Makes a request without tokenizing anything."""

    def process_inputs(
        self, request_id: str, prompt: Any, params: SamplingParams, **kwargs: Any
    ) -> EngineCoreRequest:
        """What a request needs to reach the core."""
        return EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt["prompt_token_ids"],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def assign_request_id(self, request: EngineCoreRequest) -> None:
        """The same two names that vLLM gives."""
        request.external_req_id = request.request_id
        request.request_id = f"{request.request_id}-{uuid.uuid4().hex[:8]}"


def stub_config(shutdown_timeout: int = 0) -> SimpleNamespace:
    """The parts of a VllmConfig that client and engine read."""
    return SimpleNamespace(
        shutdown_timeout=shutdown_timeout,
        model_config=None,
        cache_config=SimpleNamespace(
            effective_attention_block_size=None, kv_sharing_fast_prefill=False
        ),
        parallel_config=SimpleNamespace(
            enable_elastic_ep=False,
            enable_fault_tolerance=False,
            data_parallel_size=1,
            data_parallel_size_local=1,
            data_parallel_index=0,
            data_parallel_rank_local=None,
            local_engines_only=False,
        ),
    )


def make_engine(core: StubCore, shutdown_timeout: int = 0) -> AsyncLLM:
    """vLLM's real AsyncLLM on ``core``, less what needs a model."""
    config = stub_config(shutdown_timeout)
    engine = AsyncLLM.__new__(AsyncLLM)
    engine.vllm_config = config
    engine.model_config = SimpleNamespace(is_encoder_decoder=False)
    engine.scheduler_config = SimpleNamespace(
        max_num_queued_reqs=None, max_num_queued_tokens=None
    )
    engine.observability_config = SimpleNamespace(otlp_traces_endpoint=None)
    engine.log_requests = False
    engine.log_stats = False
    engine.logger_manager = None
    engine.renderer = StubRenderer()
    engine.input_processor = StubInputProcessor()
    engine.output_processor = OutputProcessor(None, log_stats=False)
    engine.engine_core = AsyncMPClient(
        config, None, log_stats=False, client_addresses=core.addresses
    )
    engine.output_handler = None
    return engine


class _ClientAt(MPClient):
    """Where the core of a synchronous client is, which only its base can be told."""

    addresses: dict[str, str]

    def __init__(self, **options: Any) -> None:
        super().__init__(client_addresses=self.addresses, **options)


def make_llm_engine(core: StubCore) -> LLMEngine:
    """vLLM's real LLMEngine on ``core``, less what needs a model."""
    client = type(
        "_SyncClient", (SyncMPClient, _ClientAt), {"addresses": core.addresses}
    )
    engine = LLMEngine.__new__(LLMEngine)
    engine.vllm_config = stub_config()
    engine.model_config = SimpleNamespace(is_encoder_decoder=False)
    engine.log_stats = False
    engine.logger_manager = None
    engine.dp_group = None
    engine.external_launcher_dp = engine.should_execute_dummy_batch = False
    engine.renderer = StubRenderer()
    engine.input_processor = StubInputProcessor()
    engine.output_processor = OutputProcessor(None, log_stats=False)
    engine.engine_core = client(engine.vllm_config, None, log_stats=False)
    return engine


@contextlib.contextmanager
def stub_llm_engine() -> Iterator[tuple[LLMEngine, StubCore]]:
    """An engine without a loop on a stub core; what is left of both goes in the end."""
    core = StubCore()
    engine = make_llm_engine(core)
    try:
        yield engine, core
    finally:
        engine.shutdown()
        core.close()


@contextlib.contextmanager
def stub_engine(
    shutdown_timeout: int = 0, **core_options: Any
) -> Iterator[tuple[AsyncLLM, StubCore]]:
    """An engine on a stub core; whatever is left of both goes in the end."""
    core = StubCore(**core_options)
    engine = make_engine(core, shutdown_timeout)
    try:
        yield engine, core
    finally:
        engine.shutdown()
        core.close()


def sampling(max_tokens: int, **options: Any) -> SamplingParams:
    """Parameters for a request without a tokenizer."""
    options.setdefault("output_kind", RequestOutputKind.DELTA)
    return SamplingParams(max_tokens=max_tokens, detokenize=False, **options)


PROMPT = {"type": "token", "prompt_token_ids": [1, 2, 3]}


def generate(engine: AsyncLLM, name: str, max_tokens: int, **options: Any) -> Any:
    """One request, as ``generate()`` gives it."""
    return engine.generate(dict(PROMPT), sampling(max_tokens, **options), name)
