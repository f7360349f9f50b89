"""A blocking call on a thread of its own, awaited on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class OnceInThread(Generic[T]):
    """Runs a blocking call once; whoever asks, wherever, gets that one result.

    Not a pool of :mod:`concurrent.futures`: the loop's default executor may be
    full of the host's work just when the engine must stop, and the interpreter
    joins such threads at its exit, so one hung call would keep it for ever. A
    daemon thread holds up no one.
    """

    def __init__(self, name: str, call: Callable[[float], T]) -> None:
        """Nothing runs yet.

        Args:
            name: Of the thread.
            call: Gets the seconds that it may take.
        """
        self._name = name
        self._call: Callable[[float], T] | None = call
        self._runner: int | None = None
        self._lock = threading.Lock()
        self._result: Future[T] | None = None

    def _claim(self) -> tuple[Future[T], bool]:
        with self._lock:
            if self._result is not None:
                return self._result, False
            self._result = Future()
            # Running, so that no waiter that is cancelled can cancel it.
            self._result.set_running_or_notify_cancel()
            return self._result, True

    def _run(self, result: Future[T], seconds: float) -> None:
        call, self._call = self._call, None  # it holds whoever holds this
        self._runner = threading.get_ident()
        assert call is not None
        try:
            value = call(seconds)
        except Exception as error:
            result.set_exception(error)
        except BaseException:
            # Interrupted (Ctrl-C), not failed: it can be made again.
            with self._lock:
                self._call, self._result = call, None
            result.set_exception(TimeoutError("it was interrupted"))
            raise
        else:
            result.set_result(value)

    def _start(self, future: Future[T], seconds: float) -> None:
        work = threading.Thread(
            target=self._run, args=(future, seconds), name=self._name, daemon=True
        )
        try:
            work.start()
        except RuntimeError:
            # No thread can be had: out of them, or the interpreter is on its way
            # out. Holding the loop is better than not stopping.
            self._run(future, seconds)

    def start(self, seconds: float) -> None:
        """Starts the call on its thread, if nobody has, and does not wait."""
        future, mine = self._claim()
        if mine:
            self._start(future, seconds)

    async def result(self, seconds: float) -> T:
        """Starts the call on its thread, or joins it. Can be awaited anew."""
        future, mine = self._claim()
        if mine:
            self._start(future, seconds)
        return await asyncio.wrap_future(future)

    def result_here(self, seconds: float) -> T:
        """Makes the call on this thread, or waits for the one that runs.

        Raises:
            TimeoutError: it runs elsewhere and is not over after ``seconds``.
        """
        future, mine = self._claim()
        if mine:
            self._run(future, seconds)
        elif not future.done() and self._runner == threading.get_ident():
            # A signal handler on the very thread that makes the call.
            raise TimeoutError("it is being done further up on this thread")
        return future.result(seconds)

    def result_in_time(self, seconds: float) -> T:
        """The call on its own thread, awaited by this one for ``seconds`` at most.

        Raises:
            TimeoutError: it is not over by then; it goes on.
        """
        future, mine = self._claim()
        if mine:
            self._start(future, seconds)
        return future.result(seconds)
