"""Closing an engine without a loop, and interrupting a call of it. On a stub core."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from tests.stub_core import (
    ENDLESS,
    PROMPT,
    StubCore,
    make_llm_engine,
    sampling,
    stub_llm_engine,
)
from vllm import LLM
from vllm_ashutdown import EngineClosedError, EngineShutdownError
from vllm_ashutdown.adapters import core_client
from vllm_ashutdown.adapters.engine_state import state_of


def add(engine: LLMEngine, name: str, tokens: int) -> None:
    params = sampling(tokens, output_kind=RequestOutputKind.FINAL_ONLY)
    engine.add_request(name, dict(PROMPT), params)


@pytest.fixture
def llm() -> Iterator[tuple[LLM, StubCore]]:
    """vLLM's own LLM, less what needs a model."""
    with stub_llm_engine() as (engine, core):
        one = LLM.__new__(LLM)
        one.llm_engine, one.renderer = engine, engine.renderer
        one.input_processor = engine.input_processor
        one.model_config = SimpleNamespace(model="stub", runner_type="generate")
        one._cached_repr = None
        yield one, core


def put_away(client: Any) -> None:
    """Ends a client whose engine does not."""
    client.shutdown()
    client.output_queue_thread.join()
    core_client.close_context(client)


def run(llm: LLM, name: str, tokens: int) -> list[str]:
    """A call: the ids of what it answers."""
    llm.request_counter = iter([name])
    llm._render_and_add_requests([dict(PROMPT)], [sampling(tokens)])
    outputs = llm._run_engine(RequestOutput, use_tqdm=False)
    return [one.request_id for one in outputs]


# -- closing ------------------------------------------------------------------------


def test_it_answers_and_then_it_is_closed(llm, log):
    one, _ = llm
    assert run(one, "1", 5) == ["1"]
    report = one.shutdown()
    assert report.clean
    assert one.shutdown() is None
    assert "closed" in repr(one)
    assert not [record for record in log.records if record.levelname == "ERROR"]


CALLS = {
    "generate": lambda llm: llm.generate("any"),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "any"}]),
    "enqueue": lambda llm: llm.enqueue("any"),
    "get_tokenizer": lambda llm: llm.get_tokenizer(),
    "collective_rpc": lambda llm: llm.collective_rpc("any"),
    "sleep": lambda llm: llm.sleep(),
    "wake_up": lambda llm: llm.wake_up(),
    "reset_prefix_cache": lambda llm: llm.reset_prefix_cache(),
    "get_metrics": lambda llm: llm.get_metrics(),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_says_that_it_is_closed(llm, call):
    one, _ = llm
    one.shutdown()
    one.default_sampling_params = {}
    one.supported_tasks = ("generate",)
    with pytest.raises(EngineClosedError, match="is closed"):
        CALLS[call](one)


def test_so_does_the_engine_below_it(llm):
    one, _ = llm
    engine = one.llm_engine
    one.shutdown()
    for call in (
        engine.step,
        lambda: add(engine, "1", 5),
        engine.has_unfinished_requests,
        engine.is_sleeping,
    ):
        with pytest.raises(EngineClosedError):
            call()


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
def test_a_block_closes_it_however_it_is_left(llm, error):
    one, _ = llm

    def use() -> None:
        with one as same:
            assert same is one
            run(one, "1", 5)
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(error):
            use()
    with pytest.raises(EngineClosedError):
        one.get_tokenizer()


def test_a_call_under_way_in_another_thread_ends_with_an_error(llm):
    one, core = llm
    ends: list[BaseException] = []

    def call() -> None:
        try:
            run(one, "1", ENDLESS)
        except BaseException as error:
            ends.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    core.wait_for_added(1)
    began = time.monotonic()
    report = one.shutdown()
    caller.join(5)
    assert time.monotonic() - began < 2
    assert type(ends[0]).__name__ == "EngineShutdownError"
    assert isinstance(ends[0], EngineShutdownError)
    assert report.requests.aborted + len(core.aborted) >= 1
    assert report.clean


def test_two_threads_that_close_it_get_one_report(llm):
    one, _ = llm
    engine, reports = one.llm_engine, []
    closing = [
        threading.Thread(target=lambda: reports.append(engine.shutdown()))
        for _ in range(4)
    ]
    for each in closing:
        each.start()
    for each in closing:
        each.join(5)
    assert len(reports) == 4
    assert len({id(report) for report in reports}) == 1


def test_a_signal_handler_that_closes_what_is_being_closed(llm):
    one, _ = llm
    engine, found = one.llm_engine, []
    renderer_shutdown = engine.renderer.shutdown

    def interrupted() -> None:
        found.append(engine.shutdown())
        renderer_shutdown()

    engine.renderer.shutdown = interrupted
    assert engine.shutdown().clean
    assert found == [None]


def test_dropping_the_last_reference_closes_it():
    core = StubCore()
    engine = make_llm_engine(core)
    renderer, state = engine.renderer, state_of(engine)
    gone, client = weakref.ref(engine), weakref.ref(engine.engine_core)
    del engine
    assert renderer.closed == 1
    assert state.stop.outcome.done()
    assert gone() is None
    assert client() is None
    core.close()


@pytest.mark.parametrize("attributes", [{}, {"dp_group": None}, {"engine_core": None}])
def test_a_half_built_engine_goes_without_a_word(attributes, capsys):
    engine = LLMEngine.__new__(LLMEngine)
    vars(engine).update(attributes)
    del engine
    gc.collect()
    assert capsys.readouterr().err == ""


def test_a_forked_child_leaves_it_alone(llm):
    one, _ = llm
    from vllm_ashutdown.adapters.live import live
    from vllm_ashutdown.adapters.llm_engine import shutdown

    engine = one.llm_engine
    live.watch()
    live.add(engine, shutdown)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            engine.shutdown()
            assert not engine.engine_core._finalizer.alive
            assert engine.engine_core.input_socket._shadow  # else it would complain
            assert engine.engine_core.resources.ctx._shadow
            try:
                engine.step()
            except EngineClosedError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert engine.engine_core._finalizer.alive
    assert not engine.engine_core.input_socket._shadow
    assert run(one, "1", 5) == ["1"]


def test_a_request_comes_in_while_a_step_waits_for_one(llm):
    """An idle step waits for outputs, which wait for a request of another thread."""
    one, _ = llm
    stepped: list[Any] = []
    stepping = threading.Thread(target=lambda: stepped.append(one.llm_engine.step()))
    stepping.start()
    add(one.llm_engine, "1", 1)
    stepping.join(5)
    assert [out.request_id for out in stepped[0]] == ["1"]


def test_what_breaks_in_a_step_because_of_a_stop_says_so(llm, monkeypatch):
    one, _ = llm
    engine, client = one.llm_engine, one.llm_engine.engine_core

    def closed_by_a_signal_handler() -> None:
        engine.shutdown()
        raise AttributeError("of a runner that is gone")

    monkeypatch.setattr(engine, "engine_core", InProcess(closed_by_a_signal_handler))
    with pytest.raises(EngineShutdownError) as caught:
        engine.step()
    assert isinstance(caught.value.__cause__, AttributeError)
    put_away(client)


def test_one_that_is_interrupted_before_its_first_step_keeps_nobody(llm, monkeypatch):
    from vllm_ashutdown.adapters import llm_engine

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    one, _ = llm
    with monkeypatch.context() as patch:
        patch.setattr(llm_engine, "shut_down_here", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.llm_engine.shutdown()
    assert one.llm_engine.shutdown() is not None  # and does not wait
    put_away(one.llm_engine.engine_core)


# -- interrupting -------------------------------------------------------------------


def interrupt_once_running(core: StubCore, count: int) -> None:
    """Ctrl-C, when ``count`` requests have reached the core."""

    def wait() -> None:
        core.wait_for_added(count)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ctrl_c_ends_the_call_and_the_next_answers_for_itself(llm):
    one, core = llm
    for number in range(5):
        interrupt_once_running(core, 2 * number + 1)
        with pytest.raises(KeyboardInterrupt):
            run(one, f"1{number}", ENDLESS)
        assert run(one, f"2{number}", 5) == [f"2{number}"]
    assert one.shutdown().clean


def test_so_it_is_while_requests_are_being_added(llm):
    one, _ = llm

    def prompts() -> Iterator[Any]:
        yield dict(PROMPT)
        raise KeyboardInterrupt

    one.request_counter = iter(range(10, 20))
    with pytest.raises(KeyboardInterrupt):
        one._render_and_add_requests(prompts(), [sampling(ENDLESS)] * 2)
    assert run(one, "2", 5) == ["2"]


def test_an_error_in_one_call_leaves_the_requests_of_others(llm):
    one, _ = llm

    def prompts() -> Iterator[Any]:
        raise ValueError("too long")
        yield

    add(one.llm_engine, "1", 5)
    one.request_counter = iter(range(10, 20))
    with pytest.raises(ValueError, match="too long"):
        one._render_and_add_requests(prompts(), [sampling(5)])
    outputs = one._run_engine(RequestOutput, use_tqdm=False)
    assert [out.request_id for out in outputs] == ["1"]


def test_so_does_an_interrupt_while_others_are_queued(llm):
    one, _ = llm

    def prompts() -> Iterator[Any]:
        yield dict(PROMPT)
        raise KeyboardInterrupt

    add(one.llm_engine, "1", 5)
    one.request_counter = iter(range(10, 20))
    with pytest.raises(KeyboardInterrupt):
        one._render_and_add_requests(prompts(), [sampling(ENDLESS)] * 2)
    outputs = one._run_engine(RequestOutput, use_tqdm=False)
    assert [out.request_id for out in outputs] == ["1"]


class InProcess:
    """An engine core in this process: a step of it can be signalled."""

    def __init__(self, during: Any) -> None:
        self.during, self.steps = during, 0

    def get_output(self) -> Any:
        self.during()
        self.steps += 1
        return SimpleNamespace(
            outputs=[], timestamp=0.0, weight_version=None, scheduler_stats=None
        )

    def abort_requests(self, ids: list[str]) -> None:
        """Nothing runs."""

    def shutdown(self) -> None:
        """Nothing to end."""


def test_a_step_in_this_process_is_not_left_half_way(llm, monkeypatch):
    one, _ = llm
    core = InProcess(lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(one.llm_engine, "engine_core", core)
    with pytest.raises(KeyboardInterrupt):
        one.llm_engine.step()
    assert core.steps == 1, "it came to its end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait(llm, monkeypatch):
    one, _ = llm

    def stuck() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    core = InProcess(stuck)
    monkeypatch.setattr(one.llm_engine, "engine_core", core)
    with pytest.raises(KeyboardInterrupt):
        one.llm_engine.step()
    assert core.steps == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_programs_own_is_left_alone(llm, monkeypatch):
    one, _ = llm
    came: list[int] = []

    def own(number: int, frame: Any) -> None:
        came.append(core.steps)

    core = InProcess(lambda: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(one.llm_engine, "engine_core", core)
    before = signal.signal(signal.SIGINT, own)
    try:
        one.llm_engine.step()
        assert came == [0], "in the midst of the step"
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_no_handler_is_touched(llm, monkeypatch):
    one, _ = llm
    seen: list[Any] = []
    core = InProcess(lambda: seen.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setattr(one.llm_engine, "engine_core", core)
    stepping = threading.Thread(target=one.llm_engine.step)
    stepping.start()
    stepping.join(5)
    assert seen == [signal.default_int_handler]
