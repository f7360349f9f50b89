"""What an instance of vLLM holds of its machine, looked at before and after a stop.

::

    owned = Owned(processes=family(core_pid), ipc=frozenset(paths), ...)
    before = look(owned)
    ...  # the stop
    rows = compare(before, look(owned, before))
    assert leftovers(rows) == ()

Every kind of resource is one row of :data:`PROBES`, with a probe that sees it. A
probe looks and changes nothing, asks nobody who could keep it waiting, and needs
neither vLLM nor torch to be there. What it cannot see on a system, it gives no items
for.
"""

from .inventory import PROBES, Look, Row, compare, leftovers, look
from .owned import Baseline, Owned, Process, family, take_baseline
from .probe import Probe
from .view import View

__all__ = [
    "PROBES",
    "Baseline",
    "Look",
    "Owned",
    "Probe",
    "Process",
    "Row",
    "View",
    "compare",
    "family",
    "leftovers",
    "look",
    "take_baseline",
]
