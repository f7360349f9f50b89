"""What the command says of an audit; what it finds is tested beside the audit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tests import fake_server
from tests.reports import a_report
from vllm_ashutdown.audit.server import GRACE_SECONDS, free_port
from vllm_ashutdown.cli.audit_advice import advice, early_warnings
from vllm_ashutdown.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

PROGRAM = str(Path(fake_server.__file__))


def server(*options: str) -> list[str]:
    command = [sys.executable, PROGRAM, "serve", "fake", "--port", str(free_port())]
    return ["--", *command, "--report", a_report().to_json(), *options]


def test_a_clean_stop_is_shown_and_exit_code_0(capsys, tmp_path):
    out = tmp_path / "audit.json"
    options = ["--streams", "2", "--json", str(out), "--stop", "int"]
    assert main(["audit", *options, *server()]) == 0
    text = capsys.readouterr().out
    for words in (
        "SIGINT to it",
        "Stop by signal SIGTERM",  # its own report
        "ended by an error: 503, safe to retry",
        "shared memory",
        "last process gone after",
    ):
        assert words in text, words
    assert "NO " not in text
    assert "taken away" not in text
    assert re.search(r"^Clean: (\d+) of \1 promises kept$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100
    (one,) = json.loads(out.read_text())
    assert (one["clean"], one["stock"], one["hung"], one["exit_code"]) == (
        True,
        False,
        False,
        0,
    )
    assert [stream["end"] for stream in one["streams"]] == ["ended by an error"] * 2
    assert one["stop"]["how"] == "int"
    assert one["report"]["mode"] == "drain"
    assert {row["name"] for row in one["rows"]} > {"processes", "address"}


def test_what_is_broken_is_shown_and_exit_code_1(capsys):
    assert main(["audit", *server("--fault", "leak-file", "--fault", "lie")]) == 1
    text = capsys.readouterr().out
    assert "NO no temporary files left" in text.replace("NO  ", "NO ")
    assert "left" in text
    assert "ended like a success: [DONE] with finish reason abort" in text
    assert "The last lines of its log" in text
    assert "it begins" in text
    assert "The audit has taken away what it left behind." in text


def test_compared_with_stock_side_by_side(capsys, tmp_path):
    out = tmp_path / "audit.json"
    options = ["--compare", "--streams", "1", "--limit", "0.3", "--json", str(out)]
    # The small server has no plugin to switch off: both stops are the same.
    assert main(["audit", *options, *server("--fault", "hang")]) == 1
    text = capsys.readouterr().out
    table = text[text.index("Side by side") :]
    assert re.search(
        r"^Promises of a good stop that were kept: (\d+ of \d+) stock vLLM and \1 with "
        r"vllm-ashutdown\.$",
        table,
        re.MULTILINE,
    )
    assert "How soon they were ready is not compared" in table
    line = next(line for line in table.splitlines() if "exit code" in line)
    assert line.split() == ["exit", "code", "hung,", "killed", "hung,", "killed"]
    assert table.count("NOT CLEAN") == 2
    assert [one["stock"] for one in json.loads(out.read_text())] == [True, False]


def test_a_server_that_does_not_start_is_named_with_its_last_words(capsys):
    assert main(["audit", *server("--no-such-option")]) == 1
    err = capsys.readouterr().err
    assert "the server failed: it ended with exit code 2" in err
    assert "unrecognized arguments: --no-such-option" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the server's command is missing"),
        (["--"], "the server's command is missing"),
        (["--", "vllm", "serve", "m", "--port", "x"], "--port"),
        (["--", "no-such-program-anywhere"], "No such file"),
    ],
)
def test_a_command_that_makes_no_sense_is_named(capsys, argv, words):
    assert main(["audit", *argv]) in (1, 2)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--stop", "softly"],
        ["--target", "worker"],
        ["--after", "-1"],
        ["--after", "nan"],
        ["--limit", "inf"],
        ["--limit", "0"],
        ["--start-limit", "0"],
        ["--tokens", "4"],
        ["--streams", "-1"],
        ["--streams", "many"],
        ["--at", "1", "--after", "1"],
        ["--stock", "--compare"],
        ["--no-such"],
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, options):
    with pytest.raises(SystemExit) as caught:
        main(["audit", *options, "--", "vllm", "serve"])
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_an_option_with_a_typing_error_is_named_with_what_was_meant(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["audit", "--comapre", "--", "vllm", "serve"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: vllm-ashutdown audit [options] -- COMMAND")
    assert "unrecognized arguments: --comapre" in err
    assert "did you mean --compare?" in err


@pytest.mark.parametrize("name", ["no/audit.json", "."])
def test_a_json_file_that_cannot_be_written_is_named_before_the_audit(
    capsys, tmp_path, name
):
    out = tmp_path / name
    assert main(["audit", "--json", str(out), "--", "no-such-program-anywhere"]) == 2
    assert f"cannot write {out}" in capsys.readouterr().err


def test_the_cpu_build_that_vllms_own_command_cannot_start_is_known(capsys):
    words = "importlib.metadata.PackageNotFoundError: No package metadata was found"
    program = f"import sys; sys.exit('{words} for vllm')"
    command = [sys.executable, "-c", program, "--port", str(free_port())]
    assert main(["audit", "--", *command]) == 1
    assert "start it with `vllm-ashutdown serve`" in capsys.readouterr().err


def test_an_option_of_the_audit_among_the_servers_is_known(capsys):
    assert main(["audit", *server("--start-limit=3", "--no-such", "--compare")]) == 1
    err = capsys.readouterr().err
    for name in ("--start-limit", "--compare"):
        # Before it starts, and with the reason for which it did not.
        assert err.count(f"{name} behind the -- goes to the server") == 2
    assert "--no-such behind" not in err


def test_options_that_the_server_knows_are_left_alone(capsys):
    program = "import sys; sys.exit('it failed')"
    command = [sys.executable, "-c", program, "--compare", "--port", str(free_port())]
    assert main(["audit", "--", *command]) == 1
    err = capsys.readouterr().err
    assert err.count("--compare behind the --") == 1, "it may be the server's own"
    assert err.index("warning: --compare") < err.index("it failed")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (["serve", "/no/such/model"], "/no/such/model"),
        (["serve", "~/no-such"], "~/no-such"),
        (["serve", "--model", "../no/such"], "../no/such"),
        (["--model=./no/such"], "./no/such"),
        (["serve", "/"], None),
        (["serve", "some/model"], None),
        (["serve", "--served-model-name", "/no/such"], None),
        (["serve"], None),
    ],
)
def test_a_model_that_is_not_where_the_command_says_is_known(model, told):
    said = list(advice(["vllm", *model], ["OSError: Repo id must be ..."], ()))
    words = "there is no {} on this machine: check the path of the model"
    assert said == ([] if told is None else [words.format(told)])
    assert list(early_warnings(["vllm", *model], ())) == said
    assert list(early_warnings(["docker", "run", "vllm", *model], ())) == []


def test_streams_that_were_over_before_the_stop_accuse_nobody(capsys):
    assert main(["audit", "--tokens", "5", "--after", "0.3", *server()]) == 1
    text = capsys.readouterr().out
    assert "NO  open at the stop" in text
    assert "more --tokens?" in text
    assert text.count("NO ") == 1
    assert "ok  exit code tells the truth" in text


def begin(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vllm_ashutdown.cli", "audit", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(words: str, said: IO[str] | None) -> None:
    assert said is not None
    assert any(words in line for line in said), f"{words} was never said"


def test_a_second_interrupt_kills_a_server_that_takes_its_time():
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('KV cache size')"
    )
    program = f"{deaf}; import sys; sys.stdout.flush(); time.sleep(60)"
    process = begin("--", sys.executable, "-c", program, "--port", str(free_port()))
    until("warming the model up", process.stdout)  # it has set that
    process.send_signal(signal.SIGINT)
    until("Once more kills it", process.stderr)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < GRACE_SECONDS / 2
    assert process.returncode == 130
    assert "Interrupted: the server is gone, no verdict." in err


def test_an_interrupt_in_the_second_half_keeps_the_first(tmp_path):
    out = tmp_path / "audit.json"
    options = ("--compare", "--streams", "1", "--json", str(out))
    process = begin(*options, *server())
    until("with vllm-ashutdown", process.stdout)
    until("loading", process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"What was seen by then is in {out}." in err
    assert [one["stock"] for one in json.loads(out.read_text())] == [True]


def test_an_interrupted_drain_does_not_run_on():
    options = ("--after", "60", "--tokens", "100000", "--streams", "1")
    process = begin(*options, *server("--shutdown-timeout", "30"))
    until("1 streams over", process.stdout)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert time.monotonic() - began < GRACE_SECONDS / 2
    assert process.returncode == 130


def test_nobody_who_reads_is_no_reason_for_the_server_to_end():
    options = ("--streams", "1", *server())
    with begin(*options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert "the server failed" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_audit_and_its_server(number):
    process = begin(*server("--never-ready"))
    until("loading", process.stdout)  # the server has begun
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Interrupted: the server is gone, no verdict." in err
