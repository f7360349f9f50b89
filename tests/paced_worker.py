"""vLLM's worker with a pace. Only workers import this: see `tests.pace`."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.platforms import current_platform

from tests.pace import STEP_SECONDS, VARIABLE

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

__all__ = ["PacedWorker"]

_SECONDS = float(os.environ.get(VARIABLE, STEP_SECONDS))


class PacedWorker(Worker):
    """A worker whose every step takes the pace's time more."""

    def execute_model(self, scheduler_output: Any) -> Any:
        # Not where it only frees what requests have left: no model runs there.
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(_SECONDS)
        return super().execute_model(scheduler_output)
