from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.inventory.planted import LISTENING, child, refused
from tests.inventory.sides import found, needs_linux, sees, spares
from vllm_ashutdown.inventory import listeners as listeners_module

pytestmark = needs_linux


@pytest.fixture(params=["netlink", "proc"])
def asked(request, monkeypatch):
    """Both ways to ask the kernel."""
    if request.param == "proc":
        monkeypatch.setattr(listeners_module, "_ask", refused)


HOSTS = ["127.0.0.1", "0.0.0.0", "", "localhost"]


@sees("listening sockets")
@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("host", HOSTS)
def test_a_port_of_this_process(host):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        items = found("listening sockets", ports={(host, port)})
        assert items == {f"127.0.0.1:{port}"}
    assert found("listening sockets", ports={(host, port)}) == set()


@sees("listening sockets")
@pytest.mark.usefixtures("asked")
@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_a_port_of_this_process_in_ipv6():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        port = listening.getsockname()[1]
        assert found("listening sockets", ports={("::", port)}) == {f"[::1]:{port}"}


@sees("listening sockets")
@pytest.mark.usefixtures("asked")
def test_a_port_of_a_child():
    with child(LISTENING) as (process, (port,)):
        items = found("listening sockets", processes=(process,))
        assert items == {f"127.0.0.1:{port} of Worker (pid {process.pid})"}
    assert found("listening sockets", processes=(process,)) == set()


@spares("listening sockets")
@pytest.mark.usefixtures("asked")
def test_ports_of_others():
    with (
        socket.create_server(("127.0.0.1", 0)) as hosts,
        child(LISTENING) as (_, (theirs,)),
        child() as (ours, _),
    ):
        own = hosts.getsockname()[1]
        assert found("listening sockets", processes=(ours,)) == set(), "the host's own"
        # Another program took the port as soon as it was free.
        assert found("listening sockets", ports={("", int(theirs))}) == set()
        assert found("listening sockets", ports={("127.0.0.2", own)}) == set()


@spares("listening sockets")
@pytest.mark.usefixtures("asked")
def test_a_connection_does_not_listen():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address), listening.accept()[0]:
            listening.close()
            assert found("listening sockets", ports={address}) == set()


@sees("listening sockets")
def test_the_path_of_a_unix_socket(folder):
    path = str(folder / "uds")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
        assert found("listening sockets", uds={path}) == {f"unix:{path}"}
    Path(path).unlink()
    assert found("listening sockets", uds={path}) == set()
