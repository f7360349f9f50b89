"""A receiver of OpenTelemetry's spans, over HTTP, in the test's process."""

from __future__ import annotations

import contextlib
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

__all__ = ["Receiver", "attributes"]


class Receiver:
    """Takes spans, or holds whoever sends some until it is closed."""

    def __init__(self, answers: bool) -> None:
        self.requests: queue.Queue[bytes] = queue.Queue()
        self.closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if not answers:
                    receiver.closing.wait(60)
                    return
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.put(body)  # first: who is answered may be gone
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def come(self) -> list[Any]:
        """The spans that are there by now; it waits for none."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found += _spans(self.requests.get_nowait())
        return found

    def spans(self) -> list[Any]:
        """Those that come next."""
        return _spans(self.requests.get(timeout=20))

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def _spans(body: bytes) -> list[Any]:
    request = trace_service_pb2.ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key.removeprefix("vllm.shutdown.")] = getattr(one.value, kind)
    return found
