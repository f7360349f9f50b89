"""What only a stop needs is imported before there is one, and where a process has time.

Its cores have begun then, and it waits for them: seconds, for milliseconds of this. A
stop that is faster imports what it needs by itself.
"""

from __future__ import annotations


def get_ready() -> None:
    """Does it; the second time there is nothing to do."""
    from ..core import stop
    from ..tree import stopping  # noqa: F401
    from . import async_llm_run, http_server  # noqa: F401

    stop.get_ready()
