"""Processes: engine cores, workers, coordinator, API servers, resource tracker."""

from __future__ import annotations

from .probe import Probe
from .view import View


def _processes(view: View) -> frozenset[str]:
    return frozenset(map(str, view.living))


PROCESSES = Probe(
    row="processes",
    what="engine cores, workers, coordinator, API servers, resource tracker",
    noun="process",
    state="is alive",
    look=_processes,
)
