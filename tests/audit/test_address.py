from __future__ import annotations

import contextlib
import socketserver
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.certificate import Certificate
from vllm_ashutdown.audit.address import Address, CommandError, options_of

SERVE = ["vllm", "serve", "some/model"]


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], Address()),
        (["--port", "81"], Address(port=81)),
        (["--port=81", "--host", "::1"], Address("::1", 81)),
        (["--host", "0.0.0.0"], Address()),
        (["--api-key", "a", "b"], Address(key="a")),
        (["--api_key=a"], Address(key="a")),
        (["--uds", "/run/x"], Address(uds="/run/x")),
        (["--ssl-certfile", "c", "--ssl-keyfile", "k"], Address(tls=True)),
        (["--max-model-len", "81", "--por", "3", "-O3"], Address()),
        (["--override", '{"port": 3}', "-tp", "2"], Address()),
    ],
)
def test_a_command_says_where_its_server_answers(options, address):
    assert options_of([*SERVE, *options], {}).address == address


def test_a_key_may_stand_in_the_environment():
    assert options_of(SERVE, {"VLLM_API_KEY": "k"}).address.key == "k"
    options = options_of([*SERVE, "--api-key", "own"], {"VLLM_API_KEY": "k"})
    assert options.address.key == "own"


def test_a_command_says_for_how_long_it_drains():
    assert options_of(SERVE, {}).drain == 0
    assert options_of([*SERVE, "--shutdown-timeout", "30"], {}).drain == 30
    assert options_of([*SERVE, "--shutdown_timeout=2.5"], {}).drain == 2.5


@pytest.mark.parametrize(
    "options",
    [
        ["--port", "http"],
        ["--port", "0"],
        ["--port", "65536"],
        ["--port"],
        ["--shutdown-timeout", "-1"],
        ["--shutdown-timeout", "nan"],
        ["--shutdown-timeout", "soon"],
    ],
)
def test_options_that_make_no_sense_are_named(options):
    with pytest.raises(CommandError, match=options[0]):
        options_of([*SERVE, *options], {})


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (Address(), "http://127.0.0.1:8000"),
        (Address("::1", 81, tls=True), "https://[::1]:81"),
        (Address(uds="/run/x"), "unix:/run/x"),
    ],
)
def test_an_address_is_written_as_clients_write_it(address, words):
    assert str(address) == words


# -- a client reaches it -----------------------------------------------------------


class Says(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = str(self.headers.get("authorization")).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a client"  # a UNIX socket's has no name

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "http")
    server = socketserver.UnixStreamServer(path, Says)
    with served(server), Address(uds=path, key="k").client() as client:
        assert client.get("/").text == "Bearer k"


def test_a_certificate_of_ones_own(tmp_path, monkeypatch):
    made = Certificate.make(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Says)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    # A proxy in the environment is not meant for this machine.
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    address = Address(port=server.server_address[1], tls=True)
    with served(server), address.client() as client:
        assert client.get("/").text == "None"
