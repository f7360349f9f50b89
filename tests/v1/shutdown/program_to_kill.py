"""A program with an engine, made in a thread that is over, and a child of its own.

Run by test_program_killed.py, which reads what it prints.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading

import psutil
from vllm.v1.engine.async_llm import AsyncLLM

from tests.v1.shutdown.library_scenes import Callers, make_engine


async def work(engine: AsyncLLM, pids: dict[str, list[int]]) -> None:
    """Has requests in flight, says so, and goes on for ever."""
    callers = Callers(engine)
    await callers.flowing.wait()
    print("PIDS " + json.dumps(pids), flush=True)
    await asyncio.gather(*callers.tasks)
    signal.pause()


def main() -> None:
    """The program."""
    own = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    engines: list[AsyncLLM] = []
    # The kernel's parent-death signal would take its end for that of the program.
    maker = threading.Thread(target=lambda: engines.append(make_engine()))
    maker.start()
    maker.join()
    family = psutil.Process(os.getpid()).children(recursive=True)
    vllms = [one.pid for one in family if one.pid != own.pid]
    asyncio.run(work(engines[0], {"vllm": vllms, "own": [own.pid]}))


if __name__ == "__main__":
    main()
