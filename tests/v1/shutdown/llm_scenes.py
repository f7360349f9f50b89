"""Programs that use a real ``LLM``, one a scene. Run by test_llm.py."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.scenes import INTERRUPTS, Found, Scene, main
from tests.tiny_model import counts, tiny_model
from vllm import LLM, SamplingParams
from vllm_ashutdown import EngineClosedError

ME = psutil.Process()
TIMES = int(os.environ.get(INTERRUPTS, "20"))


def make() -> LLM:
    """The tiny model, as a program would make it."""
    return LLM(
        str(tiny_model()),
        enforce_eager=True,
        num_gpu_blocks_override=1024,
        gpu_memory_utilization=0.5,  # by default a memory node must be nearly empty
    )


def ask(llm: LLM, tokens: int = 24) -> None:
    """A call whose answer is right, and is all that it gets."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    outputs = llm.generate("Count on from 417", params, use_tqdm=False)
    assert len(outputs) == 1, outputs
    text = outputs[0].outputs[0].text
    assert len(outputs[0].outputs[0].token_ids) == tokens
    assert counts(text), text


def is_closed(llm: LLM) -> None:
    """Every call says so, and closing it again is nothing."""
    for call in (lambda: ask(llm), llm.get_tokenizer, llm.sleep):
        try:
            call()
        except EngineClosedError:
            continue
        raise AssertionError("it is not closed")
    llm.shutdown()
    assert not ME.children(recursive=True) or _only_tracker()


def _only_tracker() -> bool:
    return all("resource_tracker" in " ".join(c.cmdline()) for c in ME.children())


class Interrupts:
    """Ctrl-C at some moment of a call, again and again."""

    def __init__(self) -> None:
        self.handler = signal.getsignal(signal.SIGINT)
        self.lots = random.Random(7)

    def strike(self, call: Callable[[], Any]) -> None:
        """One, which must come out of ``call`` once."""
        timer = threading.Timer(
            self.lots.uniform(0.02, 0.4), os.kill, (os.getpid(), signal.SIGINT)
        )
        timer.start()
        try:
            call()
        except KeyboardInterrupt:
            timer.join()
        else:
            raise AssertionError("no KeyboardInterrupt")
        time.sleep(0)  # where a second one would come
        assert signal.getsignal(signal.SIGINT) is self.handler


def interrupt_again_and_again(llm: LLM) -> None:
    """Ctrl-C ends the call, and the engine is as good as before."""
    interrupts = Interrupts()
    for _ in range(TIMES):
        interrupts.strike(lambda: ask(llm, 8000))
        ask(llm)


def tensors(llm: LLM) -> list[weakref.ref[Any]]:
    """Weights and KV cache of an engine in this process."""
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    return [weakref.ref(one) for one in (*runner.model.parameters(), *runner.kv_caches)]


def in_process() -> Found:
    """Weights and cache are free when it is closed, and memory is back."""
    gc.disable()  # it must not need luck
    levels, closing = [], []
    for _ in range(3):
        with make() as llm:
            ask(llm)
            held = tensors(llm)
            assert all(one() is not None for one in held)
            began = time.monotonic()
            report = llm.shutdown()
            closing.append(time.monotonic() - began)
            assert report is not None
            assert report.clean, report
            assert not any(one() is not None for one in held)
        is_closed(llm)
        levels.append(ME.memory_info().rss)
    with make() as llm:
        interrupt_again_and_again(llm)
    return {"closing": closing, "levels": levels}


def core_process() -> Found:
    """The same with a core of its own; and a fork of the program leaves it alone."""
    with make() as llm:
        interrupt_again_and_again(llm)
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # through every exit hook
        assert os.waitpid(pid, 0)[1] == 0
        ask(llm)
        began = time.monotonic()
        report = llm.shutdown()
        seconds = time.monotonic() - began
        assert report is not None
        assert report.clean, report
    is_closed(llm)
    return {"closing": [seconds]}


def dropped() -> Found:
    """The last reference goes."""
    llm = make()
    ask(llm)
    del llm
    assert _only_tracker()
    return {}


def in_a_thread() -> Found:
    """Made in a thread, used in another, closed in a third."""
    made: list[LLM] = []
    for work in (
        lambda: made.append(make()),
        lambda: ask(made[0]),
        lambda: made[0].shutdown(),  # noqa: PLW0108 (there is none yet)
    ):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    is_closed(made[0])
    return {}


def an_exception_on_the_way_out() -> Found:
    """The program fails; its own error is all that is told."""
    llm = make()
    ask(llm)
    sys.excepthook = lambda kind, error, trace: print("its own:", error)
    raise ZeroDivisionError


kept: list[LLM] = []


def sys_exit() -> Found:
    """Left at module scope, with a code of the program's own."""
    kept.append(make())
    ask(kept[0])
    sys.exit(3)


def host_keeps_its_manners() -> Found:
    """Signals, logging, the exception hook and the directory are as they were."""
    import logging

    def manners() -> Any:
        return (
            [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
            logging.getLogger().handlers[:],
            logging.getLogger().level,
            Path.cwd(),
            sys.excepthook,
        )

    before = manners()
    with make() as llm:
        ask(llm)
        during = manners()
    assert manners() == during == before
    return {}


def what_changes_in_the_environment() -> Found:
    """With the plugin or without: by making an engine, using it and closing it."""
    environment = dict(os.environ)
    llm = make()
    ask(llm)
    if os.environ.get("VLLM_ASHUTDOWN") == "0":
        llm.llm_engine.engine_core.shutdown()
    else:
        llm.shutdown()
    changed = {
        name
        for name in {*environment, *os.environ}
        if environment.get(name) != os.environ.get(name)
    }
    return {"environment": sorted(changed)}


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        in_process,
        core_process,
        dropped,
        in_a_thread,
        an_exception_on_the_way_out,
        sys_exit,
        host_keeps_its_manners,
        what_changes_in_the_environment,
    )
}

if __name__ == "__main__":
    main(SCENES)
