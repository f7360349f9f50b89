"""The pages that people read: their code, and the names that they say.

A page is Markdown. What is said in code there, in a block or in a line, is taken at its
word by tests/docs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "blocks", "code", "name"]

ROOT = Path(__file__).resolve().parent.parent

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ),
]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page.

    Attributes:
        page: Whose.
        line: Where its text begins.
        language: As the fence names it; empty where it does not.
        text: What stands in it.
        output: What stands in the ``text`` block right behind it; None without one.
    """

    page: Path
    line: int
    language: str
    text: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """As people call it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str = "") -> list[Block]:
    """Those of a page, or those in one language, in their order."""
    whole = page.read_text()
    matches = list(_FENCE.finditer(whole))
    found = []
    for match, after in zip_longest(matches, matches[1:]):
        output = None
        if after is not None and after["language"] == "text":
            between = whole[match.end() : after.start()]
            output = after["text"] if not between.strip() else None
        line = whole.count("\n", 0, match.start("text")) + 1
        text = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(page, line, match["language"], text, output))
    return [one for one in found if language in ("", one.language)]


def code(page: Path) -> list[str]:
    """All that a page says in code: each line of a block, and what stands in backticks.

    A line that a backslash, or a line's end in the text, breaks is one.
    """
    whole = page.read_text()
    found = []
    for block in blocks(page):
        found += block.text.replace("\\\n", " ").splitlines()
    rest = _FENCE.sub("", whole)
    found += [" ".join(one.split()) for one in _INLINE.findall(rest)]
    return found
