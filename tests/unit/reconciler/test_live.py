"""The live window: bounded in bytes; it reports what it does not contain."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import make_identity, manifest, manifest_of
from support.queue_store import SimStore

from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key
from sluice_protocol.manifests import AcceptedManifest, RequestPart, encode_parts
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_reconciler.live_window import (
    LINE_OVERHEAD_BYTES,
    LiveReader,
    LiveView,
    LiveWindow,
    newest_lines,
)
from sluice_reconciler.metrics import StoreClock

AT_NS = 1_700_000_000 * NS_PER_S


def state(*, bytes_max: int = 1 << 20, agent_bytes_max: int = 1 << 20) -> LiveWindow:
    live = LiveWindow(
        process="P", bytes_max=bytes_max, agent_bytes_max=agent_bytes_max, window_s=10
    )
    live.watch(AT_NS - 10 * NS_PER_S)
    return live


def view(live: LiveWindow, *, limit: int = 100, **asked: str) -> LiveView:
    return live.view(AT_NS, limit=limit, **asked)


def test_cursor_returns_each_record_once_and_in_order() -> None:
    """Pages of one agent or of all agents."""
    live = state()
    live.add("a", [b"a1", b"a2"])
    live.add("b", [b"b1"])
    assert view(live).lines == (b"a1", b"a2", b"b1")
    first = view(live, after="P.0", limit=2)
    assert (first.lines, first.more, first.partial) == ((b"a1", b"a2"), True, False)
    second = view(live, after=first.next, limit=2)
    assert (second.lines, second.more) == ((b"b1",), False)
    assert view(live, after=second.next).lines == ()
    live.add("a", [b"a3"])
    assert view(live, after=second.next).lines == (b"a3",)
    assert view(live, agent_id="b", after=second.next).lines == ()
    assert view(live, agent_id="a", limit=1).lines == (b"a3",)


def test_view_is_partial_until_a_window_was_watched_and_after_a_restart() -> None:
    """A cursor of another process returns everything in the window, and a reason."""
    live = LiveWindow(process="P", bytes_max=1000, agent_bytes_max=1000, window_s=10)
    assert "watched" in view(live).reasons[0]
    live.watch(AT_NS - 9 * NS_PER_S)
    live.add("a", [b"1"])
    assert view(live).partial
    assert not live.view(AT_NS + NS_PER_S, limit=9).partial
    restarted = view(live, after="Q.99")
    assert (restarted.lines, restarted.reasons[0]) == ((b"1",), restarted.reasons[0])
    assert "restarted" in restarted.reasons[0]


@pytest.mark.parametrize("absence", ["skipped", "not received", "dropped"])
def test_absent_records_make_a_view_of_the_whole_window_partial(absence: str) -> None:
    """Without a cursor too, although the absent record is older than the returned ones; until it is
    older than the window.
    """
    live = state(bytes_max=LINE_OVERHEAD_BYTES + 10)
    at_ns = AT_NS - NS_PER_S
    match absence:
        case "skipped":
            live.skip(at_ns)
        case "not received":
            live.miss(at_ns)
        case "dropped":
            live.add("a", [b"0"], accepted_at_ns=at_ns)
    live.add("a", [b"1"], accepted_at_ns=AT_NS)
    assert view(live).lines == (b"1",)
    assert absence in " ".join(view(live).reasons)
    assert absence in " ".join(view(live, after="P.0").reasons)
    assert not view(live, after=view(live).next).partial
    assert not live.view(at_ns + 10 * NS_PER_S, limit=100).partial


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.binary(max_size=80), max_size=5)), max_size=40
    ),
    st.integers(1, 2000),
    st.integers(1, 2000),
)
def test_bytes_are_bounded_and_missing_records_are_reported(
    batches: list[tuple[str, list[bytes]]], bytes_max: int, agent_bytes_max: int
) -> None:
    live = state(bytes_max=bytes_max, agent_bytes_max=agent_bytes_max)
    added: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    for agent, lines in batches:
        live.add(agent, lines)
        added[agent] += lines
        assert live.size_bytes <= bytes_max
        for name, all_lines in added.items():
            seen = view(live, agent_id=name, after="P.0", limit=1000)
            held = sum(len(line) + LINE_OVERHEAD_BYTES for line in seen.lines)
            assert held <= agent_bytes_max
            assert list(seen.lines) == all_lines[len(all_lines) - len(seen.lines) :]
            assert seen.partial or len(seen.lines) == len(all_lines)
    assert len(view(live, after="P.0", limit=1000).lines) * LINE_OVERHEAD_BYTES <= live.size_bytes


@pytest.mark.parametrize("after", ["", "x", "P.", "P.-1", "P.1.x", "P." + "9" * 30, "P.\u0661"])
def test_invalid_cursor_is_refused(after: str) -> None:
    if after:
        with pytest.raises(BadUsage, match="next"):
            view(state(), after=after)


def seeded(store: SimStore, seq: int, bodies: list[str], *, at_ns: int) -> AcceptedManifest:
    lines = [
        f'{{"ts":{AT_NS + n},"body":"{body}","severity":9,"attributes":{{"n":"{n}"}}}}'
        for n, body in enumerate(bodies)
    ]
    who = make_identity(seq, count=len(bodies))
    frame = encode_frame(
        identity=who, columns=columns_from_ndjson("logs", lines), resource=(("host", "h"),)
    )
    one = manifest_of(frame, at_ns=at_ns)
    store._put(blob_key(one.digest), frame)
    return one


async def test_reader_keeps_the_newest_records_and_skips_unreadable_batches() -> None:
    """Old batches are not read; an unreadable blob is reported, and later batches are read."""
    store, live = SimStore(), state(agent_bytes_max=1000)
    store_clock = StoreClock(store.clock)
    store_clock.observe(UnixNs(AT_NS))
    reader = LiveReader(store, live, store_clock)
    old = seeded(store, 0, ["old"], at_ns=AT_NS - 11 * NS_PER_S)
    young = seeded(store, 10, [f"line {n}" for n in range(50)], at_ns=AT_NS - NS_PER_S)
    broken = manifest(100, at_ns=AT_NS - 3 * NS_PER_S, frame=b"broken")
    store._put(blob_key(broken.digest), b"broken")
    gone = manifest(110, at_ns=AT_NS - 2 * NS_PER_S, frame=b"gone")
    running = asyncio.create_task(reader.run())
    reader.offer([broken, gone, old, young])
    await reader.wait(50, 5)
    running.cancel()
    seen = view(live, after="P.0")
    records = [msgspec.json.decode(line) for line in seen.lines]
    assert [one["seq"] for one in records] == list(range(60 - len(records), 60))
    assert 0 < len(records) < 50
    last = records[-1]
    assert (last["body"], last["attributes"], last["severity"]) == ("line 49", {"n": "49"}, 9)
    assert (last["resource"], last["kind"]) == ({"host": "h"}, "logs")
    assert last["accepted_at_unix_ns"] == AT_NS - NS_PER_S
    assert [word in " ".join(seen.reasons) for word in ("dropped", "skipped")] == [True] * 2


async def test_a_request_that_was_offered_lately_is_left_out() -> None:
    store, live = SimStore(), state()
    store_clock = StoreClock(store.clock)
    store_clock.observe(UnixNs(AT_NS))
    reader = LiveReader(store, live, store_clock)
    first = seeded(store, 0, ["a", "b"], at_ns=AT_NS - 2 * NS_PER_S)
    second = seeded(store, 10, ["b", "c"], at_ns=AT_NS - NS_PER_S)
    parts = [RequestPart(request=bytes([n]) * 16, start=n % 2, count=1) for n in (0, 1, 3)]
    first = replace(first, parts=encode_parts(parts[:2]))
    again = RequestPart(request=parts[1].request, start=0, count=1)
    second = replace(second, parts=encode_parts([again, parts[2]]))
    running = asyncio.create_task(reader.run())
    reader.offer([first])
    reader.offer([second])
    await reader.wait(2, 5)
    running.cancel()
    records = [msgspec.json.decode(line) for line in view(live, after="P.0").lines]
    assert [(one["body"], one["seq"]) for one in records] == [("a", 0), ("b", 1), ("c", 11)]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("metrics", ['{"ts":1,"name":"a","value":1.5}', '{"ts":2,"name":"b","value":2}'] * 20),
        ("entries", ['{"key":"YQ==","value":"Yg=="}', '{"key":"Yw==","value":"ZA=="}'] * 20),
        ("logs", ['{"ts":1,"body":"é"}', '{"ts":2,"body":"","attributes":{"k":"v"}}'] * 20),
    ],
)
def test_lines_of_every_kind_equal_the_records_of_the_frame(kind: str, lines: list[str]) -> None:
    """All lines, or as many of the newest as fit."""
    who = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=len(lines) - 1)
    frame = encode_frame(identity=who, columns=columns_from_ndjson(kind, lines))
    one = msgspec.structs.replace(manifest(0, count=len(lines), frame=frame), kind=kind)
    whole = newest_lines(one, frame, 1 << 20)
    records = [msgspec.json.decode(line) for line in whole]
    assert [one["seq"] for one in records] == list(range(len(lines)))
    for record, line in zip(records, lines, strict=True):
        sent = msgspec.json.decode(line)
        assert {name: record[name] for name in sent if name != "ts"} == {
            name: value for name, value in sent.items() if name != "ts"
        }
    few = newest_lines(one, frame, 2000)
    assert few == whole[len(whole) - len(few) :]
    assert 0 < len(few) < len(whole)
    assert newest_lines(one, frame, 10) == []
