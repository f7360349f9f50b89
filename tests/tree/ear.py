"""What the processes of a test tell it, and it them: no wait without an event.

Over datagrams, for which nobody holds a descriptor of anyone else: whether an end of a
connection stays open in some process is what these tests are about.
"""

from __future__ import annotations

import json
import socket
from typing import Any

Words = dict[str, Any]

SECONDS = 10.0
"""Until a test gives up; reached only by one that fails."""


class Ear:
    """Hears everyone who knows its address, in the order in which they told it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")  # the kernel finds an address
        self._socket.settimeout(SECONDS)
        self._put_by: list[Words] = []
        self.address = self._socket.getsockname().decode()

    def hear(self, *kinds: str) -> Words:
        """The next that is of one of ``kinds``, or the next; others are put by."""
        for words in self._put_by:
            if not kinds or words["is"] in kinds:
                self._put_by.remove(words)
                return words
        while True:
            words = json.loads(self._socket.recv(1 << 16))
            if not kinds or words["is"] in kinds:
                return words
            self._put_by.append(words)

    def close(self) -> None:
        self._socket.close()


def tell(address: str, kind: str, **words: Any) -> None:
    """Tells it to the ear at ``address``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.sendto(json.dumps({"is": kind} | words).encode(), address)
