"""The script, in the shell that it is for."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from vllm_ashutdown.cli.main import main

COMMANDS = {"serve", "seams", "reclaim", "report", "audit", "doctor", "completion"}


@pytest.fixture
def offered(capsys):
    """What bash offers where a line is broken off."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def offered(*words: str) -> set[str]:
        program = (
            f'{script}\nCOMP_WORDS=(vllm-ashutdown "$@") COMP_CWORD=$#\n'
            '_vllm_ashutdown\nprintf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            [bash, "-uc", program, "bash", *words],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return set(done.stdout.split())

    return offered


def test_first_come_the_commands(offered):
    assert offered("") == COMMANDS | {"--help", "--version"}
    assert offered("re") == {"reclaim", "report"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "--"], {"--help", "--html", "--json"}),
        (["report", "x.json", "--h"], {"--help", "--html"}),
        (["audit", "--sto"], {"--stop", "--stock"}),
        (["audit", "--stop", ""], {"term", "int", "term-twice", "kill"}),
        (["audit", "--target", "g"], {"group"}),
        (["completion", ""], {"bash", "zsh"}),
        (["doctor", "--json", "--u"], {"--unit"}),
    ],
)
def test_then_what_the_command_takes(offered, words, expected):
    assert offered(*words) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--html", ""],
        ["audit", "--after", ""],
        ["audit", "--stop", "int", "--", "vllm", "--"],
        ["nothing", ""],
    ],
)
def test_else_the_shell_does_as_it_always_does(offered, words):
    assert offered(*words) == set()


def test_zsh_reads_it_by_way_of_bash(capsys):
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert "bashcompinit" in script
    zsh = shutil.which("zsh")
    if zsh is not None:
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)


def test_another_shell_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["completion", "fish"])
    assert caught.value.code == 2
    assert "bash" in capsys.readouterr().err
