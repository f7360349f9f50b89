"""A program that serves like vLLM, in milliseconds, and stops in any wrong way.

    python fake_server.py --port 8001 --fault leak-file

Without a fault its stop is what a stop must be: each stream gets one error event and no
``[DONE]``, everything is given back, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MEMORY = "fake-server-"
"""What its segments are called in /dev/shm."""

FAULTS = (
    "hang",
    "lie",
    "lie-about-length",
    "cut",
    "silent",
    "not-retryable",
    "exit-code",
    "leak-process",
    "leak-daemon",
    "leak-memory",
    "leak-mapped-memory",
    "leak-semaphore",
    "leak-file",
    "leak-listed-file",
    "leak-directory",
    "leak-socket",
    "leak-port",
)

TOKEN_SECONDS = 0.005

_SLEEP = "import time; time.sleep(60)"

stopping = threading.Event()
options = argparse.Namespace()
kept: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            model = {"id": "fake", "max_model_len": options.length}
            self.answer(200, {"data": [model]})
        else:
            self.answer(503 if stopping.is_set() else 200, {})

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        asked = json.loads(self.rfile.read(length))
        if self.headers.get("authorization", "") != options.expects:
            self.answer(401, {"error": {"message": "who are you?"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        count = 0
        while count < asked["max_tokens"]:
            if options.drain:
                time.sleep(TOKEN_SECONDS)
            elif stopping.wait(TOKEN_SECONDS):
                self.ended(count)
                return
            count += 1
            self.event({"choices": [{"text": f" {count}"}]})
        self.whole("length", count)

    def ended(self, count: int) -> None:
        if "silent" in options.fault:
            time.sleep(60)
        elif "cut" in options.fault:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif "lie" in options.fault:
            self.whole("abort", count)
        elif "lie-about-length" in options.fault:
            self.whole("length", count)
        else:
            code = 500 if "not-retryable" in options.fault else 503
            self.event({"error": {"message": "stopping", "code": code}}, "error")
            self.chunk(b"")

    def whole(self, reason: str, count: int) -> None:
        self.event({"choices": [{"text": "", "finish_reason": reason}]})
        self.event({"choices": [], "usage": {"completion_tokens": count}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data: Any, name: str = "") -> None:
        head = f"event: {name}\n" if name else ""
        self.chunk(f"{head}data: {json.dumps(data)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def answer(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def plant(fault: str, server: Server) -> None:
    """Makes what is not given back."""
    place = Path(tempfile.gettempdir())
    name = f"{MEMORY}{uuid.uuid4().hex[:8]}"
    if fault == "leak-process":
        subprocess.Popen([sys.executable, "-c", _SLEEP])
    elif fault == "leak-daemon":
        subprocess.Popen(
            [sys.executable, "-c", f"import os; os.fork() and os._exit(0); {_SLEEP}"],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).wait()
    elif fault == "leak-memory":
        Path("/dev/shm", name).write_bytes(b"left")
    elif fault == "leak-mapped-memory":
        path = Path("/dev/shm", name)
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            kept.append(mmap.mmap(file.fileno(), 4096))
    elif fault == "leak-semaphore":
        Path("/dev/shm", f"sem.{name}").write_bytes(b"left")
    elif fault == "leak-file":
        (place / "left").touch()
    elif fault == "leak-listed-file":
        from vllm_ashutdown.core.claims import claims

        (place / "listed").touch()
        claims.note("file", str(place / "listed"))
    elif fault == "leak-directory":
        (place / "left-directory").mkdir()
    elif fault == "leak-socket":
        one = socket.socket(socket.AF_UNIX)
        one.bind(str(place / "socket"))
    elif fault == "leak-port":
        subprocess.Popen([sys.executable, "-c", _SLEEP], pass_fds=[server.fileno()])


def report(text: str) -> None:
    where = os.environ.get("VLLM_ASHUTDOWN_REPORT")
    if text and where:
        Path(where).write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", nargs="*")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--fault", choices=FAULTS, action="append", default=[])
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--length", type=int, default=100_000)
    parser.add_argument("--report", default="")
    parser.parse_args(namespace=options)
    options.drain = options.shutdown_timeout > 0
    options.expects = f"Bearer {options.api_key}" if options.api_key else ""
    print("it begins", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.set())
    if options.never_ready:
        stopping.wait()
        return 0
    server = Server((options.host, options.port), Handler)
    for fault in options.fault:
        plant(fault, server)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    while not stopping.wait(0.02):
        pass  # a handler runs only between two of these
    if {"hang", "silent"}.intersection(options.fault):
        time.sleep(60)
    server.shutdown()
    server.server_close()  # waits for each handler's thread
    report(options.report)
    return 7 if "exit-code" in options.fault else 0


if __name__ == "__main__":
    sys.exit(main())
