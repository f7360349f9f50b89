"""The Python sources of a release, out of its wheel and into a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["CACHE", "FetchError", "cached", "fetch"]

CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "vllm-ashutdown"
    / "releases"
)
"""Where sources are kept unless the caller says otherwise."""

ROOM = 1 << 30
"""Bytes that must be free: the largest wheel, its sources, and some to spare."""

ANY_MACHINE = (
    *("--platform", "manylinux_2_28_x86_64", "--only-binary", ":all:"),
    *("--implementation", "cp", "--abi", "abi3", "--python-version", "3.12"),
)
"""The sources are the same for all machines; so whichever this is, the wheel of one."""


class FetchError(Exception):
    """Raised when a release cannot be loaded."""


def cached(requirement: str, cache: Path = CACHE) -> Path | None:
    """The sources of ``requirement``, such as ``vllm==0.33.0``, if they are there."""
    place = cache / requirement.replace("==", "-")
    return place if place.is_dir() else None


def fetch(requirement: str, cache: Path = CACHE) -> Path:
    """The directory with the package ``vllm`` of ``requirement``, loaded if need be.

    Raises:
        FetchError: there is no room, or pip does not get it.
    """
    place = cached(requirement, cache)
    if place is not None:
        return place
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < ROOM:
        raise FetchError(
            f"{free >> 20} MiB are free in {cache}, and loading {requirement} takes "
            f"{ROOM >> 20}. Make room, or name another place with --cache."
        )
    # In the cache, so that the last step is a rename: it is there whole, or not at all.
    with tempfile.TemporaryDirectory(dir=cache, prefix=".loading-") as directory:
        wheel = _download(requirement, Path(directory))
        sources = Path(directory) / "sources"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            wanted = [
                name
                for name in names
                if name.startswith("vllm/") and name.endswith(".py")
            ]
            archive.extractall(sources, wanted)
        if not (sources / "vllm").is_dir():
            raise FetchError(f"{wheel.name} has no package vllm in it.")
        return sources.rename(cache / requirement.replace("==", "-"))


def _download(requirement: str, directory: Path) -> Path:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--disable-pip-version-check", "--no-input", *ANY_MACHINE),
            *("--dest", str(directory), requirement),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip() or "it said nothing"
        raise FetchError(
            f"pip did not load {requirement}. Is its package index within reach? "
            f"It said:\n{said}"
        )
    return wheels[0]
