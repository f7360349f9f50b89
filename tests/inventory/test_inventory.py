from __future__ import annotations

import contextlib
import json
import logging
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from msgspec import structs

from tests.inventory.planted import LISTENING, MAPPED, child
from vllm_ashutdown.inventory import (
    PROBES,
    Look,
    Owned,
    Probe,
    Row,
    compare,
    leftovers,
    look,
)

linux = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux")

ROWS = {probe.row: probe for probe in PROBES}


def row_of(rows: tuple[Row, ...], name: str) -> Row:
    (row,) = (row for row in rows if row.name == name)
    return row


def test_a_look_has_every_row_and_finds_nothing_for_nobody():
    seen = look(Owned())
    assert list(seen.items) == list(ROWS)
    assert not seen.errors
    assert seen.seconds > 0
    rows = compare(seen, seen)
    assert [row.name for row in rows] == list(ROWS)
    assert leftovers(rows) == ()


@linux
def test_what_a_process_gave_back_and_what_outlived_it():
    segment = SharedMemory(create=True, size=4096)
    segment.close()
    with child(MAPPED.format(path=f"/dev/shm/{segment.name}")) as (process, _):
        owned = Owned(processes=(process,))
        before = look(owned)
    # Nobody is left who could lead to the segment: its name is known from before.
    assert look(owned).items["shared memory"] == ()
    rows = compare(before, look(owned, before))
    assert row_of(rows, "processes") == Row("processes", (str(process),))
    assert row_of(rows, "shared memory").before == (segment.name,)
    assert leftovers(rows) == (f"shared memory {segment.name} is there",)
    segment.unlink()
    assert leftovers(compare(before, look(owned, before))) == ()


@linux
def test_what_lost_its_name_is_no_name_to_look_for():
    segment = SharedMemory(create=True, size=4096)
    with child(MAPPED.format(path=f"/dev/shm/{segment.name}")) as (process, _):
        segment.unlink()
        owned = Owned(processes=(process,))
        before = look(owned)
    assert len(before.items["shared memory"]) == 1
    # This process still maps it, as a host does that gave it to a forked child.
    assert look(owned, before).items["shared memory"] == ()
    segment.close()


@linux
def test_each_leftover_is_a_readable_line(tmp_path):
    path = tmp_path / "store"
    path.touch()
    with child(LISTENING) as (process, (port,)):
        owned = Owned(processes=(process,), files=frozenset({str(path)}))
        seen = look(owned)
        assert leftovers(compare(seen, seen)) == (
            f"process Worker (pid {process.pid}) is alive",
            f"temporary file {path} is there",
            f"socket 127.0.0.1:{port} of Worker (pid {process.pid}) still listens",
        )


@pytest.mark.parametrize(
    ("row", "item", "line"),
    [
        (
            "processes",
            "VLLM::Worker (pid 12)",
            "process VLLM::Worker (pid 12) is alive",
        ),
        ("shared memory", "psm_ab12", "shared memory psm_ab12 is there"),
        ("semaphores", "mp-ab12", "semaphore mp-ab12 is there"),
        ("ipc files", "/tmp/a", "socket file /tmp/a is there"),
        ("temporary files", "/tmp/{}", "temporary file /tmp/{} is there"),
        ("listening sockets", "[::1]:80", "socket [::1]:80 still listens"),
        ("process groups", "group 1", "process group group 1 is initialised"),
        (
            "device memory",
            "3 MiB of GPU 0 by W (pid 1)",
            "device memory, 3 MiB of GPU 0 by W (pid 1) is held",
        ),
        ("threads", "vllm-a (id 3)", "thread vllm-a (id 3) is alive"),
        ("tasks", "AsyncLLM.x (Task-1)", "task AsyncLLM.x (Task-1) is pending"),
        ("references", "engine", "object engine is still referenced"),
        ("descriptors", "7 -> /tmp/a", "descriptor 7 -> /tmp/a is open"),
    ],
)
def test_how_a_leftover_reads(row, item, line):
    assert ROWS[row].line(item) == line


def test_descriptors_are_shown_and_are_no_leftovers():
    before = Look({"descriptors": ("1 -> a",)})
    after = Look({"descriptors": ("1 -> a", "2 -> b")})
    row = row_of(compare(before, after), "descriptors")
    assert (len(row.before), len(row.after), row.leftovers) == (1, 2, ())
    assert str(row) == "descriptors: 1 before, 2 after"


def test_a_row_reads_as_one_line():
    row = Row("ipc files", ("a", "b"), ("b",), ("socket file b is there",))
    assert str(row) == "ipc files: 2 before, 1 after; socket file b is there"


# -- a probe that fails ----------------------------------------------------------


def fails(view: object) -> frozenset[str]:
    raise LookupError("no such thing")


FAILING = (
    Probe("bad", "", "bad", "is bad", fails),
    Probe("good", "", "thing", "is there", lambda view: frozenset({"b", "a"})),
    Probe("shown", "", "bad", "is bad", fails, must_go=False),
)


def test_a_probe_that_fails_costs_its_own_row_and_is_not_clean(caplog):
    with caplog.at_level(logging.WARNING, "vllm.ashutdown"):
        seen = look(Owned(), probes=FAILING)
    assert seen.items == {"bad": (), "good": ("a", "b"), "shown": ()}
    assert seen.errors["bad"] == "LookupError: no such thing"
    assert "cannot look at bad" in caplog.text
    rows = compare(Look({}), seen, FAILING)
    assert leftovers(rows) == (
        "bad could not be seen: LookupError: no such thing",
        "thing a is there",
        "thing b is there",
    )


# -- JSON ------------------------------------------------------------------------


@linux
def test_a_row_survives_json():
    with child() as (process, _):
        seen = look(Owned(processes=(process,)))
    for row in compare(seen, seen):
        text = json.dumps(structs.asdict(row))
        assert Row.from_plain(json.loads(text)) == row


@pytest.mark.parametrize(
    "changed",
    [
        {"name": None},
        {"before": "one line"},
        {"after": None},
        {"leftovers": [1]},
    ],
)
def test_what_is_no_row_is_refused(changed):
    data = structs.asdict(Row("a"))
    with pytest.raises(ValueError, match="not a row"):
        Row.from_plain(data | changed)
    for part in data:
        with pytest.raises(ValueError, match=part):
            Row.from_plain({key: data[key] for key in data if key != part})


# -- speed -----------------------------------------------------------------------


@linux
def test_a_look_at_five_processes_takes_a_few_milliseconds():
    segment = SharedMemory(create=True, size=4096)
    with contextlib.ExitStack() as stack:
        hold = MAPPED.format(path=f"/dev/shm/{segment.name}") + LISTENING
        children = [stack.enter_context(child(hold))[0] for _ in range(5)]
        owned = Owned(processes=tuple(children), ports=frozenset({("", 8000)}))
        looks = [look(owned) for _ in range(5)]
    segment.close()
    segment.unlink()
    assert all(len(one.items["listening sockets"]) == 5 for one in looks)
    # The best of them: another program may have the processor meanwhile.
    assert min(one.seconds for one in looks) < 0.05
