from __future__ import annotations

import socket
import sys
import tempfile
import types
from pathlib import Path

from tests.inventory.sides import found, needs_linux, sees, spares

pytestmark = needs_linux


@sees("ipc files")
def test_a_socket_file_whose_owner_is_gone(folder):
    path = str(folder / "ipc")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    assert found("ipc files", ipc={path, str(folder / "never")}) == {path}
    Path(path).unlink()
    assert found("ipc files", ipc={path}) == set()


@spares("ipc files")
def test_a_socket_file_beside_it(folder):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "theirs"))
    assert found("ipc files", ipc={str(folder / "ours")}) == set()


@sees("temporary files")
def test_a_store_a_directory_and_a_link_to_nowhere(folder):
    store, directory, link = folder / "store", folder / "directory", folder / "link"
    store.touch()
    directory.mkdir()
    link.symlink_to(folder / "nowhere")
    paths = {str(store), str(directory), str(link)}
    assert found("temporary files", files=paths) == paths
    store.unlink()
    directory.rmdir()
    link.unlink()
    assert found("temporary files", files=paths) == set()


@sees("temporary files")
def test_the_directory_of_metrics_that_vllm_made(monkeypatch):
    directory = tempfile.TemporaryDirectory()
    module = types.SimpleNamespace(_prometheus_multiproc_dir=directory)
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.prometheus", module)
    assert found("temporary files") == {directory.name}
    directory.cleanup()
    assert found("temporary files") == set()


@spares("temporary files")
def test_the_directory_of_metrics_that_is_the_users(monkeypatch, folder):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    module = types.SimpleNamespace(_prometheus_multiproc_dir=None)
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.prometheus", module)
    assert found("temporary files") == set()
