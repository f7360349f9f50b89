"""What is made under a name that outlives its maker: sockets, memory, directories."""

from __future__ import annotations

from ..seam import Guard, How, Seam

_COMMUNICATORS = "vllm.distributed.device_communicators"
_OURS = "vllm_ashutdown.adapters"
_CONNECTOR = "vllm.distributed.ec_transfer.ec_connector.cpu"

NAMES: tuple[Seam, ...] = (
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
        name="create_server_unix_socket",
        targets=(
            "vllm.entrypoints.launchers.launcher:create_server_unix_socket",
            "vllm.entrypoints.openai.api_server:create_server_unix_socket",  # 0.28
        ),
        how=How.WRAP,
        make=f"{_OURS}.api_server:make_create_server_unix_socket",
        why="The socket file of --uds stays, and the next server cannot bind it.",
        reference="vllm#13907",
        until="vLLM unlinks the socket file that it has bound",
        guard=Guard(parameters=("path",), reads=("AF_UNIX", "bind")),
    ),
    Seam(
        name="setup_multiprocess_prometheus",
        targets=("vllm.v1.metrics.prometheus:setup_multiprocess_prometheus",),
        how=How.WRAP,
        make=f"{_OURS}.prometheus:make_setup_multiprocess_prometheus",
        why="The directory of several API servers' metrics stays where its maker "
        "does not end in the interpreter's own way.",
        reference="vllm#17546",
        until="vLLM removes the directory in the process that has made it, last of all",
        guard=Guard(reads=("TemporaryDirectory", "_prometheus_multiproc_dir")),
    ),
    Seam(
        name="shutdown_prometheus",
        targets=("vllm.v1.metrics.prometheus:shutdown_prometheus",),
        how=How.REPLACE,
        make=f"{_OURS}.prometheus:make_shutdown_prometheus",
        why="It gives an object for a path, which is an error line, and in an API "
        "server, where the metrics are, it does nothing.",
        reference="vllm#17546",
        until="vLLM marks each process dead as it ends, in the directory by its path",
        guard=Guard(reads=("_prometheus_multiproc_dir", "mark_process_dead")),
    ),
    Seam(
        name="ShmRingBuffer.__init__",
        targets=(f"{_COMMUNICATORS}.shm_broadcast:ShmRingBuffer.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.shm_broadcast:make_init",
        why="Its memory is unlinked in a destructor, which a process that is killed, "
        "or that leaves fast, never runs.",
        reference="vllm#8803",
        until="vLLM unlinks the name in the queue's own shutdown",
        guard=Guard(
            parameters=("self", "n_reader", "name"),
            reads=("is_creator", "shared_memory"),
        ),
    ),
    Seam(
        name="MessageQueue.wait_until_ready",
        targets=(f"{_COMMUNICATORS}.shm_broadcast:MessageQueue.wait_until_ready",),
        how=How.WRAP,
        make=f"{_OURS}.shm_broadcast:make_wait_until_ready",
        why="The name of a queue's memory stays until the end, though nobody needs "
        "it any more, and a kill leaves it.",
        reference="vllm#8803",
        until="vLLM unlinks the name as soon as every reader has mapped the memory",
        guard=Guard(parameters=("self",), reads=("_is_writer", "n_local_reader")),
        needs=("ShmRingBuffer.__init__",),
    ),
    Seam(
        name="MessageQueue.shutdown",
        targets=(f"{_COMMUNICATORS}.shm_broadcast:MessageQueue.shutdown",),
        how=How.WRAP,
        make=f"{_OURS}.shm_broadcast:make_shutdown",
        why="Two threads of a worker that leaves call it at once, and send on one ZMQ "
        "socket, which is for one thread at a time.",
        reference="vllm#28053",
        until="vLLM cancels a queue's wait from one thread, or under a lock",
        guard=Guard(parameters=("self",), reads=("shutting_down", "cancel")),
    ),
    Seam(
        name="ShmTensorArena.__init__",
        targets=(f"{_COMMUNICATORS}.shm_tensor_arena:ShmTensorArena.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.shm_tensor_arena:make_init",
        why="Its memory is unlinked in a destructor, and not even there while a "
        "tensor in it is in use.",
        reference="vllm#8803",
        until="vLLM unlinks the name in the queue's own shutdown",
        guard=Guard(
            parameters=("self", "n_reader", "name"),
            reads=("is_creator", "shared_memory"),
        ),
        since="0.32",
    ),
    Seam(
        name="SingleWriterShmRingBuffer.__init__",
        targets=(
            f"{_COMMUNICATORS}.shm_object_storage:SingleWriterShmRingBuffer.__init__",
        ),
        how=How.WRAP,
        make=f"{_OURS}.shm_object_storage:make_init",
        why="The multimodal cache's memory stays where its maker is not closed.",
        reference="vllm#32429",
        until="vLLM unlinks the name once every worker has opened it",
        guard=Guard(
            parameters=("self", "data_buffer_size", "name", "create"),
            reads=("is_writer", "shared_memory"),
        ),
    ),
    Seam(
        name="_CPUSHMDistributed._init_cpu_shm",
        targets=(
            f"{_COMMUNICATORS}.cpu_communicator:_CPUSHMDistributed._init_cpu_shm",
        ),
        how=How.WRAP,
        make=f"{_OURS}.cpu_communicator:make_init_cpu_shm",
        why="C++ unlinks its memory in the destructor of a global, which a worker "
        "that is killed, or that leaves fast, never runs.",
        reference="vllm#34169",
        until="vLLM unlinks the name once every rank has joined",
        guard=Guard(
            parameters=("self",),
            reads=(
                "group_name",
                "communicator",
                "init_shm_manager",
                "join_shm_manager",
                "barrier",
            ),
        ),
    ),
    Seam(
        name="SharedOffloadRegion.__init__",
        targets=(
            "vllm.v1.kv_offload.cpu.shared_offload_region:SharedOffloadRegion.__init__",
        ),
        how=How.WRAP,
        make=f"{_OURS}.shared_offload_region:make_init",
        why="Where there is no barrier its file stays unless its maker cleans up.",
        reference="vllm#57303",
        until="vLLM unlinks the file in every case once all have mapped it",
        guard=Guard(parameters=("self", "engine_id"), reads=("_creator", "mmap_path")),
    ),
    Seam(
        name="ECSharedRegion.__init__",
        targets=(f"{_CONNECTOR}.ec_shared_region:ECSharedRegion.__init__",),
        how=How.WRAP,
        make=f"{_OURS}.ec_shared_region:make_init",
        why="Its file stays unless its maker cleans up.",
        reference="vllm#54002",
        until="vLLM unlinks the file once all have mapped it",
        guard=Guard(
            parameters=("self", "engine_id"), reads=("_is_creator", "_mmap_path")
        ),
    ),
    Seam(
        name="get_mp_context",
        targets=("vllm.utils.system_utils:get_mp_context",),
        how=How.WRAP,
        make=f"{_OURS}.system_utils:make_get_mp_context",
        why="The semaphores of a process that is killed are called leaked.",
        reference="vllm#8803",
        until="vLLM unlinks its semaphores once every child has opened them",
        guard=Guard(reads=("get_context",)),
    ),
)
