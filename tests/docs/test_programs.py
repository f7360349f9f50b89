"""Every program on a page runs, and prints what the page says that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import PAGES, Block, blocks

PYTHON = [block for page in PAGES for block in blocks(page, "python")]
PROGRAMS = [block for block in PYTHON if block.output is not None]


def test_there_are_some():
    """Or the page has moved, and nothing is tested."""
    assert len(PROGRAMS) >= 9


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_it_prints_what_the_page_says(block: Block, tmp_path: Path):
    done = subprocess.run(
        # As under a debugger of asyncio's: what is never awaited or closed is told.
        [sys.executable, "-X", "dev", "-c", block.text],
        cwd=tmp_path,
        env={name: os.environ[name] for name in ("PATH",) if name in os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (block.output, "")
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
