"""All seams, in one list. A test holds it against the code."""

from __future__ import annotations

from .records.engine import ENGINE
from .records.library import LIBRARY
from .records.names import NAMES
from .records.processes import PROCESSES
from .records.server import SERVER
from .seam import Seam

SEAMS: tuple[Seam, ...] = (*ENGINE, *LIBRARY, *NAMES, *PROCESSES, *SERVER)
