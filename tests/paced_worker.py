"""vLLM's worker with a pace. Only workers import this: see `tests.pace`."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any

from vllm.platforms import current_platform

from tests.pace import BRAKE, BRAKED_SECONDS, HANGS, STEP_SECONDS, VARIABLE

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

__all__ = ["PacedWorker"]

_SECONDS = float(os.environ.get(VARIABLE, STEP_SECONDS))
_BRAKE = os.open(os.environ[BRAKE], os.O_RDONLY) if BRAKE in os.environ else None


class PacedWorker(Worker):
    """A worker whose steps each take the pace's time more; it may hang at its end."""

    def execute_model(self, scheduler_output: Any) -> Any:
        # Not where it only frees what requests have left: no model runs there.
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(BRAKED_SECONDS if _is_braked() else _SECONDS)
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        while os.environ.get(HANGS) == "1":
            time.sleep(60)
        super().shutdown()


def _is_braked() -> bool:
    if _BRAKE is None:
        return False
    try:
        fcntl.flock(_BRAKE, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(_BRAKE, fcntl.LOCK_UN)
    return False
