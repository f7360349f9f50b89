"""Cores, workers and the coordinator: how they are told, and how they leave."""

from __future__ import annotations

from ..seam import Guard, How, Seam

_EXECUTOR = "vllm.v1.executor.multiproc_executor"
_OURS = "vllm_ashutdown.adapters"

PROCESSES: tuple[Seam, ...] = (
    Seam(
        name="CoreEngineProcManager.__init__",
        targets=("vllm.v1.engine.utils:CoreEngineProcManager.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.engine_utils:make_init",
        why="Two threads reap a core that leaves; the second sees it alive and "
        "kills a pid that may be another process's by then. And a core can neither "
        "be told from a signal to the whole group, nor end with its parent.",
        reference="vllm#55632",
        until="vLLM's monitor no longer asks for the exit code of a core that is "
        "being stopped, and a core has a channel to its parent",
        guard=Guard(parameters=("self",), reads=("processes", "start")),
    ),
    Seam(
        name="EngineCoreProc.run_engine_core",
        targets=("vllm.v1.engine.core:EngineCoreProc.run_engine_core",),
        how=How.WRAP,
        make=f"{_OURS}.core:make_run_engine_core",
        why="A core that has released everything spends seconds more on taking "
        "its interpreter apart, and gets killed for it.",
        reference="vllm#55632",
        until="vLLM's core leaves by itself as soon as its resources are released",
        guard=Guard(reads=("vllm_config", "run_busy_loop", "shutdown")),
    ),
    Seam(
        name="WorkerProc.worker_main",
        targets=(f"{_EXECUTOR}:WorkerProc.worker_main",),
        how=How.WRAP,
        make=f"{_OURS}.multiproc_executor:make_worker_main",
        why="The same for a worker, for which the core waits.",
        reference="vllm#55632",
        until="vLLM's worker leaves by itself as soon as its resources are released",
        guard=Guard(reads=("death_pipe", "worker_busy_loop", "shutdown")),
    ),
    Seam(
        name="EngineCoreProc._handle_shutdown",
        targets=("vllm.v1.engine.core:EngineCoreProc._handle_shutdown",),
        how=How.WRAP,
        make=f"{_OURS}.core:make_handle_shutdown",
        why="A core that drains has no clock: a request that does not end holds it "
        "for ever, or until it is killed.",
        reference="vllm#24885",
        until="vLLM's core ends what is left at its own drain deadline",
        guard=Guard(
            parameters=("self",),
            reads=("shutdown_state", "REQUESTED", "shutdown_timeout", "has_work"),
        ),
        needs=("EngineCoreProc.run_engine_core",),
    ),
    Seam(
        name="core:signal",
        targets=("vllm.v1.engine.core:signal",),
        how=How.WRAP,
        make=f"{_OURS}.core:make_signal",
        why="A core gives signals their default back before it cleans up, so that a "
        "second one kills it half way; and one to the whole group ends a drain. In its "
        "start, it only notes them.",
        reference="vllm#49668",
        until="vLLM's core keeps its handlers to the end and leaves it to its parent "
        "to decide",
        needs=(
            "EngineCoreProc.run_engine_core",
            "CoreEngineProcManager.__init__",
            "EngineCoreProc._handle_shutdown",
        ),
    ),
    Seam(
        name="WorkerProc.make_worker_process",
        targets=(f"{_EXECUTOR}:WorkerProc.make_worker_process",),
        how=How.WRAP,
        make=f"{_OURS}.multiproc_executor:make_make_worker_process",
        why="The same as for a core: a worker needs a home.",
        reference="vllm#49668",
        until="a worker has a channel to its parent",
        guard=Guard(reads=("worker_main", "start")),
    ),
    Seam(
        name="WorkerProc.wait_for_ready",
        targets=(f"{_EXECUTOR}:WorkerProc.wait_for_ready",),
        how=How.WRAP,
        make=f"{_OURS}.multiproc_executor:make_wait_for_ready",
        why="The name of the workers' lock stays for as long as the core lives, and "
        "is left by one that is killed.",
        reference="vllm#8803",
        until="vLLM unlinks its semaphores once every child has opened them",
        guard=Guard(parameters=("unready_proc_handles",), reads=("ready_pipe", "recv")),
        needs=("get_mp_context",),
    ),
    Seam(
        name="multiproc_executor:signal",
        targets=(f"{_EXECUTOR}:signal",),
        how=How.WRAP,
        make=f"{_OURS}.multiproc_executor:make_signal",
        why="A worker leaves on any signal, under the feet of a core that drains.",
        reference="vllm#49668",
        until="vLLM's workers leave it to their parent to decide",
        needs=("WorkerProc.worker_main", "WorkerProc.make_worker_process"),
    ),
    Seam(
        name="DPCoordinator.__init__",
        targets=("vllm.v1.engine.coordinator:DPCoordinator.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.coordinator:make_init",
        why="The same as for a core: the coordinator needs a home.",
        reference="vllm#49668",
        until="the coordinator has a channel to its parent",
        guard=Guard(reads=("run_coordinator", "proc", "start")),
    ),
    Seam(
        name="DPCoordinatorProc.run_coordinator",
        targets=("vllm.v1.engine.coordinator:DPCoordinatorProc.run_coordinator",),
        how=How.WRAP,
        make=f"{_OURS}.coordinator:make_run_coordinator",
        why="A signal kills the coordinator, which leaves with its code, and a parent "
        "that dies leaves it behind.",
        reference="vllm#49668",
        until="the coordinator stops when it is told",
        guard=Guard(reads=("process_input_socket", "KeyboardInterrupt")),
        needs=("DPCoordinator.__init__",),
    ),
    Seam(
        name="EngineCoreProc.shutdown",
        targets=("vllm.v1.engine.core:EngineCoreProc.shutdown",),
        how=How.WRAP,
        make=f"{_OURS}.core:make_shutdown",
        why="It collects the garbage of a whole heap that the kernel takes back "
        "a moment later.",
        reference="vllm#55632",
        until="vLLM skips the collection in a process that leaves",
        guard=Guard(parameters=("self",), reads=("model_executor", "scheduler")),
        needs=("EngineCoreProc.run_engine_core",),
    ),
    Seam(
        name="WorkerProc.shutdown",
        targets=(f"{_EXECUTOR}:WorkerProc.shutdown",),
        how=How.WRAP,
        make=f"{_OURS}.multiproc_executor:make_shutdown",
        why="The same for a worker.",
        reference="vllm#55632",
        until="vLLM skips the collection in a process that leaves",
        guard=Guard(parameters=("self",), reads=("worker", "rpc_broadcast_mq")),
        needs=("WorkerProc.worker_main",),
    ),
    Seam(
        name="MultiprocExecutor._ensure_worker_termination",
        targets=(f"{_EXECUTOR}:MultiprocExecutor._ensure_worker_termination",),
        how=How.REPLACE,
        make=f"{_OURS}.multiproc_executor:make_ensure_worker_termination",
        why="It looks every 0.1 s whether the workers are gone.",
        reference="vllm#55632",
        until="vLLM waits on the workers' sentinels",
        guard=Guard(parameters=("worker_procs",), reads=("terminate", "kill")),
    ),
)
