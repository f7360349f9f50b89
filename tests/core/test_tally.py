from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ashutdown.core.tally import Tally, WatchedMap


async def settled() -> None:
    """Lets everything that is ready run, and what becomes ready by that."""
    for _ in range(3):
        await asyncio.sleep(0)


def waiting(tally: Tally) -> asyncio.Task[None]:
    return asyncio.ensure_future(tally.idle())


async def test_nothing_in_flight_is_idle_at_once():
    tally = Tally()
    assert tally.in_flight == 0
    waiter = tally.idle()
    with pytest.raises(StopIteration):
        waiter.send(None)  # not one turn of the loop


async def test_idle_waits_for_the_last_of_all_three_counts():
    tally = Tally()
    requests, others = tally.watch({"a": 1, "b": 2}), tally.watch({"c": 3})
    with tally.busy():
        assert tally.in_flight == 4
        waiter = waiting(tally)
        for leave in (
            lambda: requests.pop("a"),
            lambda: others.pop("c"),
            lambda: requests.pop("b"),
        ):
            await settled()
            assert not waiter.done()
            leave()
        await settled()
        assert tally.in_flight == 1
        assert not waiter.done()
    await settled()
    assert waiter.done()


async def test_every_waiter_wakes_and_a_cancelled_one_is_forgotten():
    tally = Tally()
    with tally.busy():
        first, second, third = (waiting(tally) for _ in range(3))
        await settled()
        second.cancel()
        await settled()
        assert second.cancelled()
    await asyncio.gather(first, third)


async def test_a_waiter_that_is_cancelled_as_it_wakes_does_no_harm():
    tally = Tally()
    with tally.busy():
        first, second = waiting(tally), waiting(tally)
        await settled()
        first.cancel()
    await asyncio.wait_for(second, 5)
    await asyncio.wait([first])
    assert first.cancelled()


async def test_a_block_that_raises_is_over_too():
    tally = Tally()
    waiter = None

    async def fails():
        nonlocal waiter
        with tally.busy():
            waiter = waiting(tally)
            await settled()
            raise LookupError

    with pytest.raises(LookupError):
        await fails()
    assert tally.in_flight == 0
    await asyncio.wait_for(waiter, 5)


async def test_a_block_that_is_cancelled_is_over_too():
    tally = Tally()

    async def hangs():
        with tally.busy():
            await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(hangs())
    await settled()
    waiter = waiting(tally)
    await settled()
    assert tally.in_flight == 1
    task.cancel()
    await asyncio.wait_for(waiter, 5)
    assert tally.in_flight == 0


async def test_what_begins_before_a_waiter_has_woken_keeps_it_waiting():
    tally = Tally()
    requests = tally.watch({"a": 1})
    waiter = waiting(tally)
    await settled()
    del requests["a"]
    with tally.busy():
        await settled()
        assert not waiter.done()
    await asyncio.wait_for(waiter, 5)


REMOVALS = {
    "del": lambda entries: entries.__delitem__("last"),
    "pop": lambda entries: entries.pop("last"),
    "pop with a default": lambda entries: entries.pop("last", None),
    "popitem": lambda entries: entries.popitem(),
    "clear": lambda entries: entries.clear(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
async def test_every_way_out_of_the_map_is_seen(remove):
    tally = Tally()
    entries = tally.watch({"last": 1})
    waiter = waiting(tally)
    await settled()
    assert not waiter.done()
    remove(entries)
    await asyncio.wait_for(waiter, 5)
    assert entries.gone == 1
    assert not entries


def test_there_is_no_other_way_out_of_a_dict():
    # What dict has and this test does not know of must be looked at.
    removing = {"__delitem__", "pop", "popitem", "clear"}
    keeping = {"copy", "fromkeys", "get", "items", "keys", "setdefault", "update"}
    public = {name for name in vars(dict) if not name.startswith("_")}
    assert public - removing - keeping == {"values"}
    assert removing <= set(vars(WatchedMap))


MISSES = {
    "del": (lambda entries: entries.__delitem__("x"), KeyError),
    "pop": (lambda entries: entries.pop("x"), KeyError),
    "popitem": (lambda entries: (entries.clear(), entries.popitem()), KeyError),
}


@pytest.mark.parametrize(("remove", "error"), MISSES.values(), ids=MISSES)
def test_what_is_not_there_does_not_leave(remove, error):
    calls = []
    entries = WatchedMap({}, lambda: calls.append(1))
    with pytest.raises(error):
        remove(entries)
    assert entries.pop("x", "default") == "default"
    entries.clear()
    assert (entries.gone, calls) == (0, [])


def test_what_comes_is_not_what_leaves():
    calls = []
    entries = WatchedMap({"a": 1}, lambda: calls.append(1))
    entries["b"] = 2
    entries["a"] = 3
    entries.setdefault("c", 4)
    entries.update(d=5)
    assert (entries.gone, calls, len(entries)) == (0, [], 4)


@given(
    st.dictionaries(st.integers(0, 5), st.integers()),
    st.lists(
        st.tuples(
            st.sampled_from(["set", "del", "pop", "default", "popitem", "clear"]),
            st.integers(0, 5),
        )
    ),
)
def test_it_is_a_dict_that_counts(start, actions):
    plain, told = dict(start), []
    watched = WatchedMap(start, lambda: told.append(len(watched)))
    gone = 0

    def on(entries, action, key):
        if action == "set":
            entries[key] = key
        elif action == "del":
            del entries[key]
        elif action == "clear":
            entries.clear()
        elif action == "popitem":
            return entries.popitem()
        else:
            return entries.pop(key) if action == "pop" else entries.pop(key, None)
        return None

    def tried(entries, action, key):
        try:
            return on(entries, action, key)
        except KeyError:
            return KeyError

    for action, key in actions:
        before = len(plain)
        calls = len(told)
        assert tried(plain, action, key) == tried(watched, action, key)
        assert plain == watched
        left = max(0, before - len(plain))
        gone += left
        assert watched.gone == gone
        assert len(told) - calls == (1 if left else 0)
        if left:
            assert told[-1] == len(plain), "told once the entries have left"


async def test_an_exchange_and_its_entry_are_one_request_to_show():
    tally = Tally()
    assert tally.requests == 0
    entries = tally.watch({"a": 1})
    with tally.busy():
        assert (tally.requests, tally.in_flight) == (1, 2)
        with tally.busy():
            assert tally.requests == 2
        entries.pop("a")
        assert (tally.requests, tally.gone) == (1, 1)
    assert tally.requests == 0


async def test_what_is_watched_no_more_is_a_plain_dict_and_counts_for_nothing():
    tally = Tally()
    watched = tally.watch({"a": 1, "b": 2})
    waiter = waiting(tally)
    await settled()
    plain = tally.unwatch(watched)
    assert type(plain) is dict
    assert plain == {"a": 1, "b": 2}
    assert (tally.in_flight, tally.gone) == (0, 0)
    await settled()
    assert waiter.done()


async def test_who_wants_to_know_is_told_of_all_that_leaves():
    tally, told = Tally(), []
    tally.changed = lambda: told.append(tally.in_flight)
    watched = tally.watch({"a": 1})
    with tally.busy():
        assert told == []
        watched.pop("a")
    assert told == [1, 0]
