"""vllm.v1.engine.core_client: the front end's hold on its engine core processes."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import ENDED
from ..tree.ending import end, strike
from .exceptions import shutdown_error

if TYPE_CHECKING:
    from ..core.report import ProcessEnd

logger = logging.getLogger("vllm.ashutdown")


def loop_of(client: Any) -> asyncio.AbstractEventLoop | None:
    """The loop on which ``client`` reads from its core, once it does."""
    resources = getattr(client, "resources", None)
    task = getattr(resources, "output_queue_task", None)
    return task.get_loop() if task is not None else None


def core_is_dead(client: Any) -> bool:
    """The core died, or is stopped."""
    return bool(getattr(getattr(client, "resources", None), "engine_dead", False))


def processes(client: Any) -> list[Any]:
    """The core processes that ``client`` started; none where others did."""
    manager = getattr(getattr(client, "resources", None), "engine_manager", None)
    return list(getattr(manager, "processes", None) or ())


def is_in_process(client: Any) -> bool:
    """Whether the core of ``client`` runs in this process, and nothing speaks to it."""
    return not hasattr(client, "resources")


def coordinators(client: Any) -> list[Any]:
    """The data-parallel coordinator's process, if ``client`` started one."""
    coordinator = getattr(getattr(client, "resources", None), "coordinator", None)
    return [] if coordinator is None else [coordinator.proc]


def began(client: Any) -> list[Any]:
    """All processes that ``client`` started."""
    return [*processes(client), *coordinators(client)]


def abort_in_core(client: Any, request_ids: list[str]) -> None:
    """Tells each core to forget ``request_ids``. Never waits, needs no loop.

    A core that is asked to stop while it has a drain time of its own would
    otherwise compute on for callers who are gone.
    """
    socket = getattr(client, "input_socket", None)
    if not request_ids or socket is None or socket.closed or core_is_dead(client):
        return
    import zmq
    from vllm.v1.engine import EngineCoreRequestType

    message = (
        EngineCoreRequestType.ABORT.value,
        *client.encoder.encode(request_ids),
    )
    # The plain socket behind the asyncio one: the same step must work where no
    # loop turns.
    plain: Any = zmq.Socket.shadow(socket)
    for engine in client.core_engines:
        try:
            plain.send_multipart((engine, *message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # It reads no more, so it is past computing for anyone.
            logger.debug("[shutdown] abort not sent to core %s: %s", engine, error)


def fail_utility_calls(client: Any, error: Exception) -> int:
    """Ends the calls into the core that still wait for an answer.

    vLLM leaves them waiting for ever.
    """
    pending = getattr(client, "utility_results", None) or {}
    failed = 0
    for call_id, future in list(pending.items()):
        if isinstance(future, asyncio.Future) and future.get_loop().is_closed():
            continue
        pending.pop(call_id, None)
        if not future.done():
            future.set_exception(error)
            # Whoever waits gets it. If its send failed before it could wait,
            # nobody does, and asyncio must not complain of that.
            future.exception()
            failed += 1
    return failed


def refuse_calls(client: Any, make_error: Callable[[], Exception]) -> None:
    """Makes every message to the core raise what ``make_error`` makes.

    vLLM would say that the engine is dead; it is stopped, which is no error.
    """

    def refuse() -> None:
        raise make_error()

    client.ensure_alive = refuse


def stop(client: Any, seconds: float, struck: Collection[int] = ()) -> list[ProcessEnd]:
    """Asks the core's processes to leave, waits, and kills what is left. Blocks.

    Args:
        client: vLLM's ``MPClient``.
        seconds: What they get to leave by themselves.
        struck: The pids of those that :func:`kill` ends.
    """
    resources = getattr(client, "resources", None)
    manager = getattr(resources, "engine_manager", None)
    if resources is not None:
        resources.engine_dead = True
    if manager is not None:
        take_over(manager)
    ends = end(processes(client), seconds, struck=struck, behind=coordinators(client))
    client.shutdown(timeout=0)
    return ends


def take_over(manager: Any) -> None:
    """Keeps vLLM's monitor from taking an exit for a death, and from stopping too.

    Args:
        manager: vLLM's ``CoreEngineProcManager``.
    """
    stopped = getattr(manager, "manager_stopped", None)
    if stopped is not None:
        stopped.set()
    finalizer = getattr(manager, "_finalizer", None)
    if finalizer is not None:
        finalizer.detach()


def kill(client: Any, struck: set[int]) -> None:
    """Ends the core's processes and their workers at once. Does not wait.

    Args:
        client: vLLM's ``MPClient``.
        struck: Where their pids are noted, for :func:`stop` to tell.
    """
    strike(began(client), struck)


def forsake(client: Any) -> None:
    """Leaves a forked child without a say over what is its parent's.

    vLLM's finalizers would end processes. ZMQ's sockets and contexts cannot be closed
    there, and complain of just that when they go: to a child they are what pyzmq calls
    shadows, of which somebody else is the owner.
    """
    import zmq

    resources = getattr(client, "resources", None)
    for held in vars(resources).values() if resources is not None else ():
        if isinstance(held, zmq.Socket | zmq.Context):
            held._shadow = True
    for one in (
        client,
        getattr(resources, "engine_manager", None),
        getattr(resources, "coordinator", None),
        # Of a core in this process whose workers are not.
        getattr(getattr(client, "engine_core", None), "model_executor", None),
    ):
        finalizer = getattr(one, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()


def io_tasks(client: Any) -> list[asyncio.Task[Any]]:
    """The tasks on the loop that move messages between socket and queue."""
    resources = getattr(client, "resources", None)
    tasks = (
        getattr(resources, name, None)
        for name in ("output_queue_task", "stats_update_task")
    )
    return [task for task in tasks if task is not None]


def close_context(client: Any) -> None:
    """Ends ZMQ's own threads and unlinks its socket files. May block a moment.

    vLLM leaves that to the garbage collector. A context waits for its sockets,
    so one that still has an open one (its loop never turned again to close it)
    is left alone.
    """
    resources = getattr(client, "resources", None)
    if resources is None:
        return
    import zmq

    # By their kind and not by their names, which move from release to release: one
    # that is overlooked here would hold the context, and this thread, for ever.
    held = [one for one in vars(resources).values() if isinstance(one, zmq.Socket)]
    if all(one.closed for one in held):
        resources.ctx.term()


def settle(client: Any, error: Exception) -> None:
    """Has the running loop read from the core, if the one that did turns no more.

    Args:
        client: vLLM's ``AsyncMPClient``.
        error: What ends the calls into the core that were made on that loop.
    """
    tasks = io_tasks(client)
    here = asyncio.get_running_loop()
    others = [task for task in tasks if task.get_loop() is not here]
    if core_is_dead(client) or any(task.get_loop().is_running() for task in others):
        return  # it is dead, or used from two loops at once: vLLM's to answer
    if others or any(task.done() for task in tasks):
        forget_pending(others)
        for task in others:
            if not task.get_loop().is_closed():
                task.cancel()
        _move_here(client, error)


def _move_here(client: Any, error: Exception) -> None:
    """Begins anew what moves messages.

    vLLM's tasks that read from the core, and the queue that they fill, belong to the
    loop on which the engine was used first; another waits for them in vain.
    """
    resources = client.resources
    for name in ("output_queue_task", "stats_update_task"):
        if hasattr(resources, name):
            setattr(resources, name, None)
    fail_utility_calls(client, error)
    for socket in (resources.output_socket, client.input_socket):
        # pyzmq gives the next message to whoever has waited longest. Where a loop was
        # closed without a word that is a future which can wake nobody.
        for waiting in ("_recv_futures", "_send_futures"):
            getattr(socket, waiting, []).clear()
    client.outputs_queue = asyncio.Queue()
    client._ensure_output_queue_task()


def make_call_utility(original: Callable[..., Any]) -> Callable[..., Any]:
    """``AsyncMPClient._call_utility_async``: its answer comes on the loop that asks."""

    @functools.wraps(original)
    async def call_utility(self: Any, *args: Any, **kwargs: Any) -> Any:
        settle(self, shutdown_error(ENDED))
        return await original(self, *args, **kwargs)

    return call_utility


def wake_reader(client: Any, error: Exception) -> None:
    """Has whoever waits for the next output of a ``SyncMPClient`` get ``error``.

    On a thread: a signal handler may be asking, of a thread that is in the midst of
    the very queue.
    """
    queue = getattr(client, "outputs_queue", None)
    if queue is not None:
        threading.Thread(target=queue.put_nowait, args=(error,), daemon=True).start()


def drop_outputs(client: Any) -> None:
    """Empties the queue that nobody reads any more."""
    queue = getattr(client, "outputs_queue", None)
    while queue is not None and not queue.empty():
        queue.get_nowait()


def forget_pending(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Lets tasks of a loop that turns no more go without a complaint.

    They can neither run nor be cancelled there. ``asyncio.gather`` quiets its
    children by the same attribute.
    """
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
