"""What the command says of a report, and of what is none."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.reports import a_report
from vllm_ashutdown.cli.main import main
from vllm_ashutdown.core.report import ShutdownReport

CLEAN = a_report()
DIRTY = a_report(leftovers=("process X is alive",))


@pytest.fixture
def saved(tmp_path: Path):
    def saved(report: ShutdownReport) -> str:
        path = tmp_path / "report.json"
        path.write_text(report.to_json() + "\n", encoding="utf-8")
        return str(path)

    return saved


@pytest.mark.parametrize(("report", "code"), [(CLEAN, 0), (DIRTY, 1)])
def test_as_text_with_the_verdict_as_exit_code(saved, capsys, report, code):
    assert main(["report", saved(report)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    assert "Stop by signal SIGTERM" in out
    assert ("NOT CLEAN" in out) is bool(code)
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(("report", "code"), [(CLEAN, 0), (DIRTY, 1)])
def test_as_json_it_is_the_report_and_the_verdict(saved, capsys, report, code):
    assert main(["report", "--json", saved(report)]) == code
    text = capsys.readouterr().out
    data = json.loads(text)
    assert (data["clean"], data["problems"]) == (not code, [*report.leftovers])
    assert ShutdownReport.from_json(text) == report


@pytest.mark.parametrize(("report", "code"), [(CLEAN, 0), (DIRTY, 1)])
def test_as_a_page_it_says_where(saved, capsys, tmp_path, report, code):
    out = tmp_path / "page.html"
    assert main(["report", saved(report), "--html", str(out)]) == code
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    said = capsys.readouterr().out
    assert said == f"{out}: {'NOT CLEAN' if code else 'clean'}\n"


def test_from_standard_input_to_standard_output(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(CLEAN.to_json()))
    assert main(["report", "-", "--html", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("<!doctype html>")
    assert out.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"# vllm", "no JSON"),
        (b"{}", "it has no 'trigger'"),
        (b"[1]", "it is no JSON object"),
        (b"\xff\xfe", "it is no text"),
        (b'{"seconds": 1}', "it has no 'trigger'"),
    ],
)
def test_what_is_no_report_is_named(tmp_path, capsys, content, why):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert main(["report", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{path} is not a shutdown report: {why}" in err
    assert "VLLM_ASHUTDOWN_REPORT" in err


def test_what_an_audit_has_written_has_the_report_of_its_server(tmp_path, capsys):
    path = tmp_path / "audit.json"
    report = json.loads(a_report().to_json())
    stock, ours = ({"checks": [], "report": one} for one in (None, report))
    path.write_text(a_report().to_json())
    code = main(["report", str(path)])
    alone = capsys.readouterr().out
    for found in ([stock, ours], [ours], ours):
        path.write_text(json.dumps(found))
        assert main(["report", str(path)]) == code
        assert capsys.readouterr().out == alone


def test_what_an_audit_has_written_of_stock_alone_has_none(tmp_path, capsys):
    path = tmp_path / "audit.json"
    path.write_text('[{"checks": [], "report": null}]')
    assert main(["report", str(path)]) == 2
    assert f"{path} is what an audit has written, of servers" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    path = tmp_path / "none.json"
    assert main(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"cannot read {path}: No such file or directory" in err
    assert "VLLM_ASHUTDOWN_REPORT" in err


def test_without_a_file_it_is_the_one_that_the_variable_names(
    saved, monkeypatch, capsys
):
    monkeypatch.setenv("VLLM_ASHUTDOWN_REPORT", saved(DIRTY))
    assert main(["report"]) == 1
    assert "NOT CLEAN" in capsys.readouterr().out


def test_without_any_file_it_says_where_reports_come_from(monkeypatch, capsys):
    monkeypatch.delenv("VLLM_ASHUTDOWN_REPORT", raising=False)
    assert main(["report"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "VLLM_ASHUTDOWN_REPORT" in err
    assert "audit --json FILE" in err


def test_a_page_that_cannot_be_written_is_named(saved, tmp_path, capsys):
    out = tmp_path / "no" / "page.html"
    assert main(["report", saved(CLEAN), "--html", str(out)]) == 2
    assert f"cannot write {out}: No such file or directory" in capsys.readouterr().err
