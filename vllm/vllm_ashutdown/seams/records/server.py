"""Servers: who answers while it stops, and who stops it."""

from __future__ import annotations

from ..seam import Guard, How, Seam

_LAUNCHERS = (
    "vllm.entrypoints.launchers.launcher",
    "vllm.entrypoints.launcher",  # 0.28
)
_OURS = "vllm_ashutdown.adapters"

SERVER: tuple[Seam, ...] = (
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
        name="VllmEngineServicer",
        targets=(
            "vllm.entrypoints.launchers.grpc_server:VllmEngineServicer",
            "vllm.entrypoints.grpc_server:VllmEngineServicer",  # 0.28, 0.29
        ),
        how=How.WRAP,
        make=f"{_OURS}.grpc_server:make_vllm_engine_servicer",
        why="Who stops the gRPC server must know which engine it serves.",
        reference="vllm#24885",
        until="vLLM's gRPC server awaits a shutdown coroutine of its engine",
        needs=("AsyncLLM.shutdown", "AsyncLLM.ashutdown"),
    ),
    Seam(
        name="grpc",
        targets=(
            "vllm.entrypoints.launchers.grpc_server:grpc",
            "vllm.entrypoints.grpc_server:grpc",  # 0.28, 0.29
        ),
        how=How.WRAP,
        make=f"{_OURS}.grpc_server:make_grpc",
        why="Calls in flight get 5 s whatever --shutdown-timeout says, and end "
        "without a word of why.",
        reference="vllm#24885",
        until="vLLM's gRPC server drains for --shutdown-timeout and tells its clients",
        needs=("VllmEngineServicer",),
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
        name="signal",
        targets=(
            "vllm.entrypoints.launchers.api_server.entry:signal",
            "vllm.entrypoints.openai.api_server:signal",  # 0.28
        ),
        how=How.WRAP,
        make=f"{_OURS}.entry:make_signal",
        why="A signal while an engine starts raises an exception that is lost, and "
        "the server goes on to start and serves.",
        reference="vllm#24885",
        until="vLLM's server ends its start on a signal",
    ),
    Seam(
        name="serve:signal",
        targets=("vllm.entrypoints.cli.serve:signal",),
        how=How.WRAP,
        make=f"{_OURS}.serve:make_signal",
        why="The same for the launcher of several API servers.",
        reference="vllm#24885",
        until="vLLM's launcher ends its start on a signal",
        needs=("ServeSubcommand.cmd",),
    ),
)
