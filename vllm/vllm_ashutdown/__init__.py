"""vllm-ashutdown: every stop of a vLLM becomes one ordered, bounded shutdown.

Installed beside a released vLLM, it is loaded by vLLM itself, in each of its
processes, through the entry point group ``vllm.general_plugins``; nothing needs
to import it. What a program may want is here::

    async with AsyncLLM.from_engine_args(args) as engine:    # vLLM's own classes
    with LLM(model=...) as llm:
    report = await engine.ashutdown()
    except vllm_ashutdown.EngineShutdownError:    # what ends a request that is left

This module stays light: engine cores and workers import it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    AShutdownError,
    EngineClosedError,
    EngineShutdownError,
    InvalidSettingError,
)
from .version import __version__

if TYPE_CHECKING:
    from .core.mode import Mode
    from .core.report import ShutdownReport

__all__ = [
    "AShutdownError",
    "EngineClosedError",
    "EngineShutdownError",
    "InvalidSettingError",
    "Mode",
    "ShutdownReport",
    "__version__",
    "register",
]


def register() -> None:
    """Lays the seams; vLLM calls this in every process. Doing it twice is harmless.

    The environment variable ``VLLM_ASHUTDOWN=0`` makes it do nothing.
    """
    from . import settings

    if not settings.enabled():
        return
    settings.warn_about_malformed()
    from .seams.installer import install
    from .seams.registry import SEAMS
    from .seams.support import warn_if_unsupported

    warn_if_unsupported()
    install(SEAMS)
    from .program import is_a_server

    if is_a_server():
        from .starting import start

        start.watch()


def __getattr__(name: str) -> Any:
    if name == "Mode":
        from .core.mode import Mode

        return Mode
    if name == "ShutdownReport":
        from .core.report import ShutdownReport

        return ShutdownReport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
