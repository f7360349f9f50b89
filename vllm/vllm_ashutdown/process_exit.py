"""How a process of ours leaves once it has nothing left to give back."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from . import settings
from .core.claims import claims
from .core.files import ledger, without_dead_tracker
from .tree import child


def fast_exit(code: int) -> None:
    """Ends this process without the interpreter's slow teardown.

    Taking apart an interpreter that has torch in it costs seconds and gives
    nothing back that the kernel does not take anyway. What others can see is
    released first: the files it owns, then the exit hooks (multiprocessing's
    unlink its semaphores), then the streams. The parent is told when that is done:
    what is left is to give back memory, which takes the kernel longer than all else.

    Returns if the user has switched it off; then the slow way is the way.
    """
    if not settings.fast_exit():
        return
    ledger.remove_all()
    claims.withdraw()
    leave_operators()
    with without_dead_tracker():
        if _is_forked():
            # What is registered here is the parent's, and a forked child of
            # multiprocessing leaves it alone: it would close the parent's files.
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        else:
            atexit._run_exitfuncs()  # multiprocessing's finalizers are among them
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A closed or broken stream has nothing to lose.
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
    tie = child.current()
    if tie is not None:
        tie.tell_leaving(code)
    try:
        for work in _last:
            work()
    finally:
        os._exit(code)


_last: list[Callable[[], object]] = []


def at_last(work: Callable[[], object]) -> None:
    """Has :func:`fast_exit` do ``work`` behind its last word, when nobody waits.

    Nobody hears of an error in it any more, so it must not have any.
    """
    _last.append(work)


def _is_forked() -> bool:
    process = multiprocessing.current_process()
    return getattr(process, "_start_method", None) == "fork"


def leave_operators() -> None:
    """Leaves torch's table of operators to the process's end.

    Each library of them unregisters its own at exit, one by one: a third of what
    else such a process does on its way out.
    """
    registry = getattr(weakref.finalize, "_registry", {})
    for finalizer, info in list(registry.items()):
        if getattr(info.func, "__module__", None) == "torch.library":
            finalizer.atexit = False


_ours = threading.Event()


def will_leave_fast() -> None:
    """Notes that this process is ours from its first line to its last."""
    if settings.fast_exit():
        _ours.set()


def leaves_fast() -> bool:
    """Whether this process leaves for good once its resources are released."""
    return _ours.is_set()


def stop_collecting() -> None:
    """Ends garbage collection in a process that is about to leave.

    vLLM collects twice on its way out, the second time the whole heap that it
    had frozen: a third of a second each, to free memory that the kernel takes
    back whole a moment later. Nothing for a process that stays.
    """
    if not leaves_fast():
        return
    gc.disable()
    gc.collect = lambda generation=2: 0
    gc.unfreeze = lambda: None


def run_and_leave(main: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Runs ``main`` as all that this process does, and leaves fast.

    An error is told as ``multiprocessing`` tells it, and leaves with its code 1.
    """
    will_leave_fast()
    draw_bars_without_semaphore()
    try:
        main(*args, **kwargs)
    except SystemExit as error:
        # The end of vLLM's busy loops; everything is released by now.
        fast_exit(exit_code(error))
        raise
    except BaseException:
        if not settings.fast_exit():
            raise
        name = multiprocessing.current_process().name
        sys.stderr.write(f"Process {name}:\n{traceback.format_exc()}")
        fast_exit(1)
    fast_exit(0)


def draw_bars_without_semaphore() -> None:
    """Gives the progress bars of this process a lock of threads.

    The one of their own is a named semaphore, which a process that is killed leaves.
    """
    if importlib.util.find_spec("tqdm") is not None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        tqdm.set_lock(threading.RLock())


def exit_code(error: SystemExit) -> int:
    """The code with which the interpreter would leave on ``error``."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1
