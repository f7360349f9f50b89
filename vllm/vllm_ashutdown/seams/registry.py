"""All seams, in one list. A test holds it against the code."""

from __future__ import annotations

from .seam import Guard, How, Seam

_ASYNC_LLM = "vllm.v1.engine.async_llm:AsyncLLM"
_EXECUTOR = "vllm.v1.executor.multiproc_executor"
_OURS = "vllm_ashutdown.adapters"

_LAUNCHERS = (
    "vllm.entrypoints.launchers.launcher",
    "vllm.entrypoints.launcher",  # 0.28
)

SEAMS: tuple[Seam, ...] = (
    Seam(
        name="AsyncLLM.shutdown",
        targets=(f"{_ASYNC_LLM}.shutdown",),
        how=How.REPLACE,
        make=f"{_OURS}.async_llm:make_shutdown",
        why="It stops the core before the output handler, which then finds its "
        "core gone and logs a dead engine; callers of generate() wait for ever.",
        reference="vllm#48745",
        until="vLLM cancels and awaits its output handler before it stops the core",
        guard=Guard(
            parameters=("self", "timeout"),
            reads=("engine_core", "output_handler", "renderer"),
        ),
    ),
    Seam(
        name="AsyncLLM.add_request",
        targets=(f"{_ASYNC_LLM}.add_request",),
        how=How.WRAP,
        make=f"{_OURS}.async_llm:make_add_request",
        why="The engine takes new requests while it stops, so a drain need never "
        "end, and a request that comes as the core dies waits for ever.",
        reference="vllm#24885",
        until="AsyncLLM refuses requests with a typed, retryable error from the "
        "first moment of a shutdown on",
        guard=Guard(
            parameters=("self", "request_id", "prompt", "params"),
            reads=("errored", "_add_request", "RequestOutputCollector"),
        ),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="AsyncLLM.ashutdown",
        targets=(f"{_ASYNC_LLM}.ashutdown",),
        how=How.ADD,
        make=f"{_OURS}.async_llm:make_ashutdown",
        why="There is no shutdown that can be awaited.",
        reference="vllm#24885",
        until="vLLM has a shutdown coroutine of its own",
        needs=("AsyncLLM.shutdown", "AsyncLLM.add_request"),
    ),
    Seam(
        name="AsyncLLM.__del__",
        targets=(f"{_ASYNC_LLM}.__del__",),
        how=How.REPLACE,
        make=f"{_OURS}.async_llm:make_del",
        why="It raises out of an engine whose __init__ failed, and at the "
        "interpreter's exit.",
        reference="HiThink GAGE#138",
        until="vLLM's own tolerates a half-built engine and a finalizing interpreter",
        guard=Guard(parameters=("self",), reads=("shutdown",)),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="AsyncLLM.__init__",
        targets=(f"{_ASYNC_LLM}.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.async_llm:make_init",
        why="An engine that is still open at the interpreter's exit must be "
        "closed before modules are taken apart.",
        reference="vllm#28838",
        until="vLLM closes its engines in an atexit hook",
        guard=Guard(parameters=("self", "vllm_config", "executor_class")),
        needs=("AsyncLLM.shutdown",),
    ),
    Seam(
        name="serve_http",
        targets=tuple(f"{module}:serve_http" for module in _LAUNCHERS),
        how=How.WRAP,
        make=f"{_OURS}.launcher:make_serve_http",
        why="The server answers /health with 200 while it drains, new requests "
        "with tracebacks, and waits for ever for streams that have no engine.",
        reference="vllm#24885",
        until="vLLM's launcher awaits a shutdown coroutine and refuses with 503",
        guard=Guard(
            parameters=("app", "sock"),
            reads=("engine_client", "add_signal_handler", "server_task", "shutdown"),
        ),
        needs=("AsyncLLM.shutdown", "AsyncLLM.ashutdown"),
    ),
    Seam(
        name="find_process_using_port",
        targets=tuple(f"{module}:find_process_using_port" for module in _LAUNCHERS),
        how=How.REPLACE,
        make=f"{_OURS}.launcher:make_find_process_using_port",
        why="It searches every process of the machine on the event loop, in the "
        "middle of a stop.",
        reference="vllm#8204",
        until="vLLM's launcher no longer calls it on its way out",
        guard=Guard(parameters=("port",)),
        needs=("serve_http",),
    ),
    Seam(
        name="get_open_zmq_ipc_path",
        targets=("vllm.utils.network_utils:get_open_zmq_ipc_path",),
        how=How.WRAP,
        make=f"{_OURS}.network_utils:make_named_file",
        why="The socket files stay in the temp directory: seven a run.",
        reference="vllm#11115",
        until="vLLM unlinks its ipc sockets by name",
        guard=Guard(reads=("VLLM_RPC_BASE_PATH",)),
    ),
    Seam(
        name="get_file_store_init_method",
        targets=("vllm.utils.network_utils:get_file_store_init_method",),
        how=How.WRAP,
        make=f"{_OURS}.network_utils:make_named_file",
        why="Torch removes the file of its store in a destructor, which no "
        "process that is killed, or that leaves fast, ever runs.",
        reference="vllm#50999",
        until="vLLM unlinks the store once every worker has joined",
        guard=Guard(reads=("gettempdir",)),
    ),
    Seam(
        name="environment_variables",
        targets=("vllm.envs:environment_variables",),
        how=How.WRAP,
        make=f"{_OURS}.envs:make_environment_variables",
        why="vLLM warns of every variable with the prefix VLLM_ that is not its own.",
        reference="vllm#24885",
        until="vLLM lets a plugin register its variables",
    ),
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
        name="core:signal",
        targets=("vllm.v1.engine.core:signal",),
        how=How.WRAP,
        make=f"{_OURS}.signals:make_signals",
        why="A core gives signals their default back before it cleans up, so that a "
        "second one kills it half way; and one to the whole group ends a drain.",
        reference="vllm#49668",
        until="vLLM's core keeps its handlers to the end and leaves it to its parent "
        "to decide",
        needs=("EngineCoreProc.run_engine_core", "CoreEngineProcManager.__init__"),
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
        name="multiproc_executor:signal",
        targets=(f"{_EXECUTOR}:signal",),
        how=How.WRAP,
        make=f"{_OURS}.signals:make_signals",
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
        name="APIServerProcessManager.__init__",
        targets=("vllm.v1.utils:APIServerProcessManager.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.utils:make_init",
        why="The same as for a core: an API server needs a home.",
        reference="vllm#49668",
        until="an API server has a channel to its parent",
        guard=Guard(parameters=("self",), reads=("processes", "start")),
    ),
    Seam(
        name="run_api_server_worker_proc",
        targets=("vllm.v1.utils:run_api_server_worker_proc",),
        how=How.WRAP,
        make=f"{_OURS}.utils:make_run_api_server_worker_proc",
        why="The same as for a core: several API servers must not decide each for "
        "itself, nor outlive their launcher.",
        reference="vllm#49668",
        until="vLLM's API servers leave it to their launcher to decide",
        guard=Guard(parameters=("listen_address", "sock", "args")),
        needs=("APIServerProcessManager.__init__",),
    ),
    Seam(
        name="wait_for_completion_or_failure",
        targets=("vllm.v1.utils:wait_for_completion_or_failure",),
        how=How.WRAP,
        make=f"{_OURS}.utils:make_wait",
        why="The launcher kills its API servers and cores at once, in the middle of "
        "their streams.",
        reference="vllm#24885",
        until="vLLM's launcher lets its API servers end their requests first",
        guard=Guard(
            parameters=("api_server_manager", "engine_manager", "coordinator"),
            reads=("sentinel", "exitcode"),
        ),
        needs=("run_api_server_worker_proc",),
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
        name="ServeSubcommand.cmd",
        targets=("vllm.entrypoints.cli.serve:ServeSubcommand.cmd",),
        how=How.WRAP,
        make=f"{_OURS}.serve:make_cmd",
        why="A server that is done takes a third of a second more to take its "
        "interpreter apart.",
        reference="vllm#55632",
        until="vLLM's command leaves as soon as it is done",
        guard=Guard(parameters=("args",), reads=("run_server",)),
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
