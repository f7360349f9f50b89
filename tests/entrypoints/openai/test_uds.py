"""The socket file of ``--uds``: bound, it is ours; and nothing else ever is."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import pytest

from vllm_ashutdown.core.files import ledger

try:
    from vllm.entrypoints.launchers.launcher import create_server_unix_socket
except ImportError:  # 0.28
    from vllm.entrypoints.openai.api_server import create_server_unix_socket


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A short one, since the kernel has a limit, and relative, as users give it."""
    monkeypatch.chdir(tmp_path)
    return "server.sock"


def owned(path: str) -> bool:
    return ("socket file", str(Path(path).absolute())) in ledger.owned()


def test_it_goes_once_and_the_next_server_can_bind(path, monkeypatch):
    with create_server_unix_socket(path) as server:
        server.listen()
        assert owned(path)
        assert Path(path).is_socket()
    absolute = Path(path).absolute()
    monkeypatch.chdir("/")  # the process may be anywhere by then
    ledger.remove([str(absolute)])
    assert not absolute.exists()
    again = create_server_unix_socket(str(absolute))
    again.close()
    assert absolute.is_socket()
    del again  # a program that goes on after its server
    gc.collect()
    assert not absolute.exists()


# vLLM leaves its own socket to the garbage collector if it cannot bind it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["file", "socket", "link"])
def test_what_was_there_before_is_not_ours(kind, path, tmp_path):
    if kind == "file":
        Path(path).write_text("precious")
    elif kind == "link":
        Path(path).symlink_to(tmp_path / "nowhere")
    else:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    with pytest.raises(OSError, match="Address already in use"):
        create_server_unix_socket(path)
    assert not owned(path)
    ledger.remove([str(Path(path).absolute())])
    assert os.path.lexists(path)


def test_the_socket_of_a_server_that_has_taken_its_place_stays(path):
    ours = create_server_unix_socket(path)
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        ledger.remove([str(Path(path).absolute())])
        assert Path(path).is_socket()
    ours.close()


def test_the_mode_that_a_user_gives_it_changes_nothing(path):
    with create_server_unix_socket(path):
        Path(path).chmod(0o600)
        ledger.remove([str(Path(path).absolute())])
    assert not Path(path).exists()


def test_an_abstract_name_is_no_file(path):
    before = ledger.owned()
    create_server_unix_socket(f"\0vllm-ashutdown-{os.getpid()}").close()
    assert ledger.owned() == before


@pytest.mark.filterwarnings(r"ignore:.*use of fork\(\):DeprecationWarning")
def test_a_forked_child_leaves_it_to_its_parent(path):
    with create_server_unix_socket(path):
        pid = os.fork()
        if pid == 0:
            ledger.remove_all()
            os._exit(0)
        os.waitpid(pid, 0)
        assert Path(path).is_socket()
