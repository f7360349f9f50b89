"""What is shown while a server runs, where nothing can move."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vllm_ashutdown.audit.address import Address
from vllm_ashutdown.audit.streams import Stream
from vllm_ashutdown.audit.verdict import Check
from vllm_ashutdown.cli.screen import (
    LAST_WORDS,
    Screen,
    check_table,
    error_lines,
    last_words,
    stream_table,
)


def printed(what: object) -> str:
    sink = io.StringIO()
    Console(file=sink, width=100, color_system=None).print(what)
    return sink.getvalue()


def a_stream(*, text: str = "", error: str = "", over: bool = True) -> Stream:
    one = Stream(Address(), "/v1/completions", {})
    one.text, one.error, one.status = text, error, 200
    if over:
        one.over.set()
    return one


def test_a_check_says_in_words_what_colours_say():
    text = printed(
        check_table([Check(True, "a", "x"), Check(False, "b", "[red]y\x1b")])
    )
    assert [line.split() for line in text.splitlines()] == [
        ["ok", "a", "x"],
        ["NO", "b", "[red]y\\x1b"],
    ]


def test_a_stream_has_a_line_with_its_last_words():
    text = printed(
        stream_table(
            [a_stream(text="so it goes", over=False), a_stream(text="cut off")]
        )
    )
    first, second = text.splitlines()[1:]
    assert "streaming" in first
    assert "so it goes" in first
    assert "cut" in second


@pytest.mark.parametrize("length", [LAST_WORDS, LAST_WORDS + 1, 500])
def test_last_words_are_few_and_whole(length):
    words = last_words(("word " * 200)[:length].strip())
    assert len(words) <= LAST_WORDS
    assert set(words.removeprefix("...").split()) <= {"word", "wor", "wo", "w"}
    assert words.startswith("...") is (length > LAST_WORDS)


def test_each_error_is_said_once_with_how_many_had_it():
    streams = [
        a_stream(error="a"),
        a_stream(error="b"),
        a_stream(error="a"),
        a_stream(),
    ]
    assert [str(line) for line in error_lines(streams)] == ["2 times: a", "1 times: b"]


def test_stages_are_lines_where_nothing_can_move(capsys):
    screen = Screen()
    with screen.working("Starting") as stage:
        stage("loading")
        stage("ready")
    with screen.following("Stopping", [a_stream()]):
        pass
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["loading", "ready"]
    assert "1 of 1 streams over" in lines[2]
