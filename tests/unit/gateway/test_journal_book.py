"""What a process has to write into its journal, decided without a store or a clock."""

import pytest
from support.builders import manifest

from sluice_gateway.journal import OBJECT_BYTES_MAX, JournalBook, PendingObject, must_register_again
from sluice_protocol.clock import MachineInstant
from sluice_protocol.journals import FENCE_S, Journal, decode_journal, process_name
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, UnixNs

PROCESS = process_name(UnixNs(1), "01J00000000000000000000000")
OTHER = process_name(UnixNs(2), "01J00000000000000000000001")
ENTRIES = [encode_record(manifest(10 * seq)) for seq in range(4)]


def at(seconds: float, wall_s: float | None = None) -> MachineInstant:
    wall = seconds if wall_s is None else wall_s
    return MachineInstant(boottime_ns=int(seconds * NS_PER_S), wall_ns=int(wall * NS_PER_S))


def book(*entries: bytes) -> JournalBook:
    made = JournalBook(PROCESS, at(0), UnixNs(1))
    for entry in entries:
        made.note(entry)
    return made


def read(pending: PendingObject) -> Journal:
    return decode_journal(pending.key, pending.body)


def sequences(pending: PendingObject) -> list[int]:
    return [one.seq_start for one in read(pending).manifests]


def test_an_object_names_every_noted_entry_and_the_time_of_the_answer() -> None:
    pending = book(*ENTRIES).next_object(UnixNs(70), at(1))
    assert sequences(pending) == [0, 10, 20, 30]
    header = read(pending).header
    assert (header.number, header.complete_through_unix_ns, header.closed) == (1, 70, False)


def test_a_pending_object_keeps_its_number_and_bytes() -> None:
    """Its outcome is unknown: with other bytes, the earlier try may win and lose an entry."""
    one = book(ENTRIES[0])
    first = one.next_object(UnixNs(70), at(1))
    one.note(ENTRIES[1])
    assert one.next_object(UnixNs(90), at(2)) is first
    one.settle(first)
    second = one.next_object(UnixNs(90), at(3))
    assert (read(second).header.number, sequences(second)) == (2, [10])


def test_an_idle_process_writes_a_heartbeat() -> None:
    pending = book().next_object(UnixNs(70), at(1))
    assert (pending.entries, read(pending).header.complete_through_unix_ns) == ((), 70)


def test_an_object_that_cannot_name_everything_repeats_the_earlier_time() -> None:
    """Its time would claim the entries that are only in the next object."""
    size = OBJECT_BYTES_MAX // 2
    one = JournalBook(PROCESS, at(0), UnixNs(5))
    for _ in range(3):
        one.note(b"x" * size)
    assert b'"complete_through_unix_ns":5' in one.next_object(UnixNs(70), at(1)).body
    assert one.pending is not None
    one.settle(one.pending)
    assert b'"complete_through_unix_ns":80' in one.next_object(UnixNs(80), at(2)).body


def test_only_the_object_with_the_last_entry_is_closed() -> None:
    one = JournalBook(PROCESS, at(0), UnixNs(5))
    for _ in range(3):
        one.note(b"x" * (OBJECT_BYTES_MAX // 2))
    first = one.next_object(UnixNs(70), at(1), closes=True)
    one.settle(first)
    assert (first.closed, one.closed) == (False, False)
    last = one.next_object(UnixNs(70), at(1), closes=True)
    one.settle(last)
    assert (last.closed, one.closed) == (True, True)


def test_a_clock_that_jumps_forward_does_not_stay_ahead() -> None:
    """After the jump the time follows the store again, whatever was claimed before."""
    one = book()
    for answered, wanted in ((900, 900), (71, 71)):
        pending = one.next_object(UnixNs(answered), at(1))
        assert read(pending).header.complete_through_unix_ns == wanted
        one.settle(pending)


def test_bytes_are_counted_until_they_are_durable() -> None:
    one = book(ENTRIES[0])
    pending = one.next_object(UnixNs(70), at(1))
    one.note(ENTRIES[1])
    assert one.held_bytes == len(ENTRIES[0]) + len(ENTRIES[1])
    assert one.waiting == 2
    one.settle(pending)
    assert (one.held_bytes, one.waiting) == (len(ENTRIES[1]), 1)


def test_the_next_registration_takes_every_entry_that_is_not_durable() -> None:
    one = book(ENTRIES[0])
    one.settle(one.next_object(UnixNs(70), at(1)))
    one.note(ENTRIES[1])
    one.next_object(UnixNs(80), at(2))
    one.note(ENTRIES[2])
    after = one.succeed(OTHER, at(90), UnixNs(85))
    moved = after.next_object(UnixNs(95), at(91))
    assert sequences(moved) == [10, 20]
    assert (read(moved).header.process, read(moved).header.number) == (OTHER, 1)


def test_the_replaced_journal_is_closed_with_the_same_entries() -> None:
    """It acknowledged the noted batches itself, so without them its closing would be false."""
    one = book(ENTRIES[0])
    one.next_object(UnixNs(70), at(1))
    one.note(ENTRIES[1])
    one.succeed(OTHER, at(90), UnixNs(85))
    first = one.next_object(UnixNs(95), at(91), closes=True)
    one.settle(first)
    last = one.next_object(UnixNs(95), at(91), closes=True)
    assert (sequences(first), first.closed) == ([0], False)
    assert (sequences(last), last.closed) == ([10], True)


@pytest.mark.parametrize(
    ("now", "lapsed"),
    [
        (at(FENCE_S), False),
        (at(FENCE_S + 0.001), True),
        (at(0, wall_s=FENCE_S + 1), True),  # a paused machine: only the wall clock shows it
        (at(FENCE_S + 1, wall_s=-500), True),  # the wall clock was set back
        (at(1, wall_s=-500), False),
    ],
)
def test_the_fence_uses_the_clock_that_ran_further(now: MachineInstant, lapsed: bool) -> None:
    assert must_register_again(at(0), now, FENCE_S) == lapsed


def test_an_unregistered_process_is_lapsed() -> None:
    assert must_register_again(None, at(0), FENCE_S)


def test_the_fence_counts_from_the_first_try_of_the_newest_durable_object() -> None:
    """An unknown outcome may be an object as old as its first try."""
    one = book(ENTRIES[0])
    pending = one.next_object(UnixNs(70), at(10))
    assert one.durable_from == at(0)
    one.next_object(UnixNs(70), at(40))
    one.settle(pending)
    assert one.durable_from == at(10)
