"""Every environment variable that this package reads, with one prefix.

They are read when they are needed, not at import: vLLM's children inherit the
environment and a test may set it. A value that means nothing is named once in a
warning, and the default holds: a typing error must not cost a server its start.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable

from msgspec import Struct

from .errors import InvalidSettingError

logger = logging.getLogger("vllm.ashutdown")


class Variable(Struct, frozen=True):
    """One environment variable.

    Attributes:
        name: As the environment has it.
        default: What holds where it is not set.
        allowed: The values that it takes, for people.
        meaning: What it does, with its unit.
        parse: Text to value; raises :class:`ValueError` on anything else.
    """

    name: str
    default: float | bool | int | str
    allowed: str
    meaning: str
    parse: Callable[[str], float | bool | int | str]

    def read(self) -> float | bool | int | str:
        """The value in force.

        Raises:
            InvalidSettingError: the text in the environment means nothing.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise InvalidSettingError(self.name, text, self.allowed) from None

    def read_or_default(self) -> float | bool | int | str:
        """The value in force, or the default where the text means nothing."""
        try:
            return self.read()
        except InvalidSettingError:
            return self.default


def _switch(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "yes": True}
    words |= {"0": False, "false": False, "off": False, "no": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(text)
    return seconds


def _whole_seconds(text: str) -> int:
    seconds = int(text)
    if seconds < 0:
        raise ValueError(text)
    return seconds


ENABLED = Variable(
    "VLLM_ASHUTDOWN",
    True,
    "1 or 0",
    "Set to 0, the plugin does nothing and vLLM keeps all of its own behaviour.",
    _switch,
)
TEARDOWN_SECONDS = Variable(
    "VLLM_ASHUTDOWN_TEARDOWN_SECONDS",
    10.0,
    "a number of seconds above 0",
    "Seconds kept for the teardown after the drain; no drain can eat into it. "
    "Together with --shutdown-timeout it is the most that a stop may take.",
    _positive_seconds,
)
RETRY_AFTER_SECONDS = Variable(
    "VLLM_ASHUTDOWN_RETRY_AFTER_SECONDS",
    1,
    "a whole number of seconds, 0 or more",
    "Seconds in the Retry-After header of a 503 from a server that is stopping.",
    _whole_seconds,
)
FAST_EXIT = Variable(
    "VLLM_ASHUTDOWN_FAST_EXIT",
    True,
    "1 or 0",
    "Set to 0, processes go through the interpreter's own slow teardown after "
    "their resources are released, instead of leaving at once.",
    _switch,
)

REPORT = Variable(
    "VLLM_ASHUTDOWN_REPORT",
    "",
    "the path of a file",
    "Where a server writes the report of its stop, as one JSON object.",
    str,
)

STATE_DIRECTORY = Variable(
    "VLLM_ASHUTDOWN_STATE_DIRECTORY",
    "",
    "the path of a directory of this user's alone",
    "Where each instance lists what it has in /dev/shm and the temporary directory, so "
    "that the next one can take away what a kill has left.",
    str,
)

VARIABLES = (
    ENABLED,
    TEARDOWN_SECONDS,
    RETRY_AFTER_SECONDS,
    FAST_EXIT,
    REPORT,
    STATE_DIRECTORY,
)


def enabled() -> bool:
    """Whether the plugin is on in this process."""
    return bool(ENABLED.read_or_default())


def fast_exit() -> bool:
    """Whether a process may skip the interpreter's teardown."""
    return bool(FAST_EXIT.read_or_default())


def teardown_seconds() -> float:
    """The teardown reserve of a stop's budget."""
    return float(TEARDOWN_SECONDS.read_or_default())


def report_path() -> str:
    """Where the report of a server's stop goes; empty for nowhere."""
    return str(REPORT.read_or_default())


def state_directory() -> str:
    """Where instances list what they own; empty for the default place."""
    return str(STATE_DIRECTORY.read_or_default())


def retry_after_seconds() -> int:
    """What a 503 tells a client to wait."""
    return int(RETRY_AFTER_SECONDS.read_or_default())


_warned: set[str] = set()


def warn_about_malformed() -> None:
    """One warning for each variable with a value that means nothing, once."""
    for variable in VARIABLES:
        try:
            variable.read()
        except InvalidSettingError as error:
            if str(error) not in _warned:
                _warned.add(str(error))
                logger.warning(
                    "[shutdown] %s; the default %s holds", error, variable.default
                )
