"""What is shown while a server runs: with motion on a terminal, else in plain lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..audit.streams import End, Stream
from ..audit.verdict import Check
from .render import WIDTH
from .words import printable, span

LAST_WORDS = 46
PLAIN_SECONDS = 5.0
"""Between two lines about the same work, where nothing can move."""


class Screen:
    """The console of the demonstration and of an audit."""

    def __init__(self) -> None:
        """Looks at standard output once: its width, and whether things can move."""
        self.console = Console(highlight=False)
        if not self.console.is_terminal or self.console.width > WIDTH:
            self.console = Console(highlight=False, width=WIDTH)

    def say(self, *lines: RenderableType) -> None:
        """Prints lines, or whatever else rich can draw."""
        for line in lines:
            self.console.print(line)

    def heading(self, text: str) -> None:
        """Begins a part."""
        self.console.print()
        self.console.rule(Text(text, "bold"), align="left", style="bright_black")
        self.console.print()

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows that something is going on; call what it yields with each stage."""
        began = time.monotonic()
        lock, current = threading.Lock(), ""

        def line() -> Text:
            seconds = f"{time.monotonic() - began:5.1f} s"
            return Text.assemble(f"{text}  ", (seconds, "cyan"), f"  {current}")

        def stage(words: str) -> None:
            nonlocal current
            with lock:
                current = words
                if not self.console.is_terminal:
                    # Nobody reads any more, and rich would end this thread, who reads
                    # the server's log: that would end the server.
                    with suppress(BrokenPipeError, SystemExit):
                        self.console.print(line())

        if not self.console.is_terminal:
            yield stage
            return
        spinner = Spinner("dots")
        picture = _Moving(lambda: Group(_beside(spinner, line())))
        with Live(picture, console=self.console, transient=True):
            yield stage

    @contextmanager
    def following(self, text: str, streams: Sequence[Stream]) -> Iterator[None]:
        """Shows the streams while they move."""
        began = time.monotonic()

        def head() -> Text:
            over = sum(stream.over.is_set() for stream in streams)
            tokens = sum(stream.tokens for stream in streams)
            seconds = f"{time.monotonic() - began:5.1f} s"
            return Text.assemble(
                f"{text}  ",
                (seconds, "cyan"),
                f"  {over} of {len(streams)} streams over, {tokens} tokens",
            )

        if self.console.is_terminal:
            spinner = Spinner("dots")
            picture = _Moving(
                lambda: Group(_beside(spinner, head()), stream_table(streams))
            )
            with Live(picture, console=self.console, transient=True):
                yield
            return
        finished = threading.Event()

        def report() -> None:
            self.console.print(head())
            while not finished.wait(PLAIN_SECONDS):
                self.console.print(head())

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()


class _Moving:
    """Drawn anew each time that it is shown."""

    def __init__(self, draw: Callable[[], RenderableType]) -> None:
        self._draw = draw

    def __rich__(self) -> RenderableType:
        return self._draw()


def _beside(spinner: Spinner, text: Text) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    text.no_wrap, text.overflow = True, "ellipsis"
    grid.add_row(spinner, text)
    return grid


def stream_table(streams: Sequence[Stream]) -> Table:
    """One line for each stream: how it ended, and the last words that came."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stream", justify="right", no_wrap=True, min_width=6)
    table.add_column("tokens", justify="right", no_wrap=True, min_width=6)
    table.add_column("end", no_wrap=True, overflow="ellipsis")
    table.add_column("last words", no_wrap=True, overflow="ellipsis")
    for number, stream in enumerate(streams, 1):
        words = Text(last_words(stream.text), "italic dim")
        table.add_row(str(number), str(stream.tokens), _end(stream), words)
    return table


def last_words(text: str) -> str:
    """The end of a text, in one line and beginning with a whole word."""
    line = printable(text)
    if len(line) <= LAST_WORDS:
        return line
    return "..." + line[-LAST_WORDS + 3 :].partition(" ")[2]


def error_lines(streams: Sequence[Stream]) -> Iterator[Text]:
    """Each different error that streams got, once, with how many got it."""
    counts: dict[str, int] = {}
    for stream in streams:
        if stream.error:
            counts[stream.error] = counts.get(stream.error, 0) + 1
    for line, count in counts.items():
        yield Text(f"{count} times: {printable(line)}", overflow="fold")


COLOURS = {
    End.OPEN: "cyan",
    End.COMPLETED: "green",
    End.ENDED: "yellow",
    End.REFUSED: "yellow",
    End.CUT: "red",
    End.LIED: "bold red",
}


def _end(stream: Stream) -> Text:
    end = stream.end
    return Text("streaming" if end is End.OPEN else stream.words, COLOURS[end])


def check_table(checks: Sequence[Check]) -> Table:
    """What was promised and what was found, a line each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark = Text("ok", "green") if check.kept else Text("NO", "bold red")
        found = Text(printable(check.found), "" if check.kept else "red")
        table.add_row(mark, check.promise, found)
    return table


def since(begin: float, end: float) -> str:
    """The time between two readings of the monotonic clock, in words."""
    return span(max(0.0, end - begin))
