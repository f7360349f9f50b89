"""Serves with a vLLM that is not the one which the seams were made for.

``AsyncLLM.shutdown`` has another signature, and what ends the workers another body, as
a later release may have it. Both still do what vLLM's own do.
"""

from __future__ import annotations

import sys
from typing import Any


def alter() -> None:
    """Puts the two functions in place of vLLM's."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    shut_down = AsyncLLM.shutdown
    end_workers = MultiprocExecutor._ensure_worker_termination

    def shutdown(self: Any, **options: Any) -> None:
        shut_down(self, **options)

    def ensure_worker_termination(worker_procs: Any) -> None:
        end_workers(worker_procs)

    AsyncLLM.shutdown = shutdown
    MultiprocExecutor._ensure_worker_termination = staticmethod(
        ensure_worker_termination
    )


if __name__ == "__main__":
    alter()
    from vllm_ashutdown.cli.main import main

    sys.exit(main(sys.argv[1:]))
