"""Runs a callback as soon as a module is imported, and never imports it itself.

A process must pay for the adapters of the modules that it uses and for no
others: an engine core has no HTTP server. So a seam waits for its module.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """Stands first in ``sys.meta_path`` and lets the others do the finding."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self._looking = threading.local()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self.callbacks or getattr(self._looking, "on", False):
            return None
        self._looking.on = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.on = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        for callback in self.callbacks.pop(module.__name__, ()):
            callback(module)


class _Loader(Loader):
    def __init__(self, inner: Loader, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        # get_code, get_source and the like, for whoever asks before the import.
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must not see us: tools ask its spec's loader for sources.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._finder.imported(module)


_finder = _Finder()


def when_imported(name: str, callback: Callback) -> bool:
    """Calls ``callback`` with module ``name``: now if it is there, else later.

    Returns:
        Whether it was called now.
    """
    module = sys.modules.get(name)
    if module is not None and not _initializing(module):
        callback(module)
        return True
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.callbacks.setdefault(name, []).append(callback)
    return False


def _initializing(module: ModuleType) -> bool:
    # importlib's own mark for a module whose body is still running.
    return bool(getattr(module.__spec__, "_initializing", False))
