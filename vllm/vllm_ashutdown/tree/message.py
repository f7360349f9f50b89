"""What parent and child say to each other: one JSON object a packet.

A packet arrives whole or not at all, so a signal handler may send one without a lock.
"""

from __future__ import annotations

import json
import socket
from typing import Any

PACKET_BYTES = 1 << 17
"""The longest message: a Linux socket's default buffer holds it."""

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """``message`` as a packet."""
    return json.dumps(message).encode()


def send(connection: socket.socket, message: Message) -> bool:
    """Sends ``message``, never waiting.

    Returns:
        False if the other end is gone or reads no more, or it is too long to be read.
    """
    packet = encode(message)
    if len(packet) > PACKET_BYTES:
        return False
    try:
        connection.send(packet, socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def receive(connection: socket.socket) -> Message | None:
    """The next message; ``None`` when the other end is gone. May wait for one.

    What is no message of ours is an empty one. It does not mean that anyone is gone:
    on that word processes are ended.
    """
    try:
        packet = connection.recv(PACKET_BYTES)
    except OSError:
        return None
    if not packet:
        return None
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
