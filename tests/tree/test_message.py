"""One JSON object a packet; what is none means nothing, and nobody is gone by it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_ashutdown.tree.message import PACKET_BYTES, encode, receive, send

Pair = tuple[socket.socket, socket.socket]


def a_pair() -> Pair:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ends = a_pair()
    yield ends
    for end in ends:
        end.close()


PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9)
FLAT = st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
MESSAGES = st.dictionaries(st.text(max_size=5), PLAIN | FLAT, max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.lists(MESSAGES, max_size=3))
def test_what_is_sent_arrives_whole_and_in_order(messages):
    one, other = a_pair()
    with one, other:
        assert all(send(one, message) for message in messages)
        assert [receive(other) for _ in messages] == messages


def test_the_other_end_is_gone_after_its_last_word(pair):
    one, other = pair
    send(one, {"is": "last"})
    one.close()
    assert receive(other) == {"is": "last"}
    assert receive(other) is None
    assert not send(other, {"is": "late"})


def test_an_own_end_that_is_closed_is_as_good_as_gone(pair):
    pair[0].close()
    assert receive(pair[0]) is None
    assert not send(pair[0], {})


@pytest.mark.parametrize(
    "packet",
    [b"\xff", b"{", b"3", b"null", b"[1]", b"[" * 100_000, b"9" * 10_000],
    ids=["bytes", "half", "number", "null", "list", "deep", "long number"],
)
def test_garbage_is_an_empty_message_and_what_follows_is_heard(pair, packet):
    pair[0].send(packet)
    send(pair[0], {"is": "next"})
    assert receive(pair[1]) == {}
    assert receive(pair[1]) == {"is": "next"}


def test_the_longest_message_arrives_and_a_longer_one_is_not_sent(pair):
    room = PACKET_BYTES - len(encode({"is": ""}))
    assert send(pair[0], {"is": "x" * room})
    assert receive(pair[1]) == {"is": "x" * room}
    assert not send(pair[0], {"is": "x" * (room + 1)})


def test_a_reader_that_reads_no_more_holds_nobody_up(pair):
    sent = 0
    while send(pair[0], {"number": sent}):
        sent += 1
    assert sent > 100
    assert [receive(pair[1]) for _ in range(sent)] == [
        {"number": number} for number in range(sent)
    ]
    assert send(pair[0], {"number": sent})
