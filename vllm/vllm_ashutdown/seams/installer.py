"""Lays seams: idempotent, in any process, and never at vLLM's cost."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from .imports import when_imported
from .seam import How, Seam, State
from .support import SUPPORTED

logger = logging.getLogger("vllm.ashutdown")

_states: dict[str, State] = {}
_reasons: dict[str, str] = {}
_originals: dict[str, Any] = {}
_waiting_for: dict[str, list[Callable[[], None]]] = {}


def install(seams: Iterable[Seam]) -> None:
    """Lays each seam now, or as soon as its module is imported.

    A seam whose guard does not match is skipped with one warning.
    """
    with _following.all_at_once():
        for seam in seams:
            if seam.name not in _states:
                _states[seam.name] = State.WAITING
                _lay_in_time(seam)


def state_of(seam: Seam) -> tuple[State, str]:
    """What became of ``seam`` in this process, and why if it was skipped."""
    return _states.get(seam.name, State.WAITING), _reasons.get(seam.name, "")


def original_or(name: str, attribute: Any) -> Any:
    """vLLM's own behind the seam ``name``, or ``attribute`` where it is not laid."""
    return _originals.get(name, attribute)


def _lay_in_time(seam: Seam) -> None:
    # Each release has one of the modules. Asking which would import their
    # parents in processes that have no use for them; waiting for all is free.
    for target in seam.targets:
        when_imported(target.partition(":")[0], partial(_lay, seam, target))


def _lay(seam: Seam, target: str, module: ModuleType) -> None:
    if _states[seam.name] is not State.WAITING:
        return
    missing = [need for need in seam.needs if _states.get(need) is State.SKIPPED]
    if missing:
        _skip(seam, f"it needs {', '.join(missing)}, which is skipped")
        return
    unknown = [need for need in seam.needs if _states.get(need) is not State.LAID]
    if unknown:
        # Their module is not imported yet; only then is it known whether they fit.
        _waiting_for.setdefault(unknown[0], []).append(
            partial(_lay, seam, target, module)
        )
        return
    if _replace(seam, target, module):
        _settle(seam)


def _settle(seam: Seam) -> None:
    """Lays, or skips, what has waited to know what became of ``seam``."""
    for lay in _waiting_for.pop(seam.name, ()):
        lay()


def _replace(seam: Seam, target: str, module: ModuleType) -> bool:
    """Puts ours in the place of vLLM's attribute, if the guard lets it."""
    path = target.partition(":")[2].split(".")
    holder: Any = module
    for part in path[:-1]:
        holder = getattr(holder, part, None)
        if holder is None:
            _skip(seam, f"{target} is gone")
            return False
    attribute = path[-1]
    found = getattr(holder, attribute, None)
    if seam.how is How.ADD:
        if found is not None:
            _skip(seam, f"this vLLM has its own {'.'.join(path)}")
            return False
    elif found is None:
        _skip(seam, f"{target} is gone")
        return False
    else:
        reason = seam.guard.mismatch(found)
        if reason is not None:
            _skip(seam, f"{target} has changed: {reason}")
            return False
    make_module, _, make_name = seam.make.partition(":")
    try:
        replacement = getattr(importlib.import_module(make_module), make_name)(found)
    except Exception as error:
        # Ours is broken, in this environment at least. That must not cost vLLM
        # the import that is running.
        logger.debug("[shutdown] seam %s", seam.name, exc_info=True)
        _skip(seam, f"{seam.make} failed: {type(error).__name__}: {error}")
        return False
    if isinstance(vars(holder).get(attribute), staticmethod):
        setattr(holder, attribute, staticmethod(replacement))
    else:
        setattr(holder, attribute, replacement)
    if holder is module and found is not None:
        _following.follow(attribute, found, replacement)
    _originals[seam.name] = found
    _states[seam.name] = State.LAID
    return True


class _Following(threading.local):
    """Makes modules of vLLM follow that have imported by name what is replaced.

    A seam in the defining module alone would be looked past by all of them. They are
    looked for among thousands of modules, so for many seams at a time where it can be.
    Each thread has its own: one that imports does not wait for one that lays seams.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Any, Any]] = []
        self._held = 0

    @contextmanager
    def all_at_once(self) -> Iterator[None]:
        """At the end of the block at the latest, all of them do."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._catch_up()

    def follow(self, name: str, found: Any, replacement: Any) -> None:
        """Has each that knows ``found`` by ``name`` know ``replacement``."""
        self._waiting.append((name, found, replacement))
        if not self._held:
            self._catch_up()

    def _catch_up(self) -> None:
        waiting: dict[str, list[tuple[Any, Any]]] = {}
        for name, found, replacement in self._waiting:
            waiting.setdefault(name, []).append((found, replacement))
        self._waiting = []
        if not waiting:
            return
        for module_name in list(sys.modules):  # another thread may import
            if not module_name.startswith("vllm."):
                continue
            module = sys.modules.get(module_name)
            if isinstance(module, ModuleType):
                names = vars(module)
                for name in waiting.keys() & names.keys():
                    for found, replacement in waiting[name]:
                        if names[name] is found:
                            setattr(module, name, replacement)


_following = _Following()


def _skip(seam: Seam, reason: str) -> None:
    _states[seam.name] = State.SKIPPED
    _reasons[seam.name] = reason
    logger.warning(
        "[shutdown] seam %s skipped, vLLM keeps its own behaviour there: %s. "
        "vllm-ashutdown supports %s.",
        seam.name,
        reason,
        SUPPORTED,
    )
    _settle(seam)
