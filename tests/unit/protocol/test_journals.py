"""Acceptance journals: their keys, their bytes, and the time through which they are complete."""

import pytest
from support.builders import manifest

from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import (
    FENCE_S,
    JOURNAL_REPLACED_AFTER_S,
    JournalHeader,
    JournalKey,
    ProcessProgress,
    decide_frontier,
    decode_journal,
    encode_journal,
    journal_key,
    parse_journal_key,
    parse_registration_key,
    process_name,
    registration_key,
    started_ns_of,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, UnixNs

ULID = "01J00000000000000000000000"
PROCESS = process_name(UnixNs(5), ULID)


def at(seconds: float) -> UnixNs:
    return UnixNs(int(seconds * NS_PER_S))


def progress(
    process: str,
    through_s: float,
    *,
    newest_s: float | None = None,
    acceptance: AcceptanceMode = "s3_manifest",
    closed: bool = False,
) -> ProcessProgress:
    return ProcessProgress(
        collector_id=f"gateway-{process}",
        process=process,
        acceptance=acceptance,
        complete_through_ns=at(through_s),
        newest_ns=at(through_s if newest_s is None else newest_s),
        closed=closed,
    )


def test_keys_are_parsed_as_they_are_built() -> None:
    assert parse_journal_key(journal_key(PROCESS, 7)) == JournalKey(process=PROCESS, number=7)
    assert parse_registration_key(registration_key(PROCESS)) == PROCESS


@pytest.mark.parametrize("key", ["gateways/v1/journals/x/1.ndjson", registration_key(PROCESS), ""])
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(InvalidRecord, match="form"):
        parse_journal_key(key)


def test_a_journal_object_is_read_as_it_was_written() -> None:
    manifests = [manifest(0), manifest(10)]
    header = JournalHeader(process=PROCESS, number=3, complete_through_unix_ns=9, batches=2)
    body = encode_journal(header, map(encode_record, manifests))
    read = decode_journal(journal_key(PROCESS, 3), body)
    assert read.header == header
    assert list(read.manifests) == manifests


@pytest.mark.parametrize(
    ("number", "lines", "reason"), [(3, 1, "1 entries"), (4, 2, "another object")]
)
def test_an_altered_journal_object_is_refused(number: int, lines: int, reason: str) -> None:
    header = JournalHeader(process=PROCESS, number=3, complete_through_unix_ns=9, batches=2)
    body = encode_journal(header, [encode_record(manifest())] * lines)
    with pytest.raises(InvalidRecord, match=reason):
        decode_journal(journal_key(PROCESS, number), body)


def test_a_line_that_is_no_manifest_is_refused() -> None:
    header = JournalHeader(process=PROCESS, number=3, complete_through_unix_ns=9, batches=1)
    with pytest.raises(InvalidRecord):
        decode_journal(journal_key(PROCESS, 3), encode_journal(header, [b"{}"]))


def test_without_gateways_the_listing_is_the_bound() -> None:
    assert decide_frontier(at(100), [], None).complete_through_ns == at(100)


def test_the_slowest_open_process_holds_the_frontier_back() -> None:
    found = decide_frontier(at(100), [progress("a", 90), progress("b", 80)], None)
    assert found.complete_through_ns == at(80)
    assert found.held_by is not None
    assert found.held_by.process == "b"


def test_the_frontier_is_never_later_than_the_listing() -> None:
    assert decide_frontier(at(100), [progress("a", 101)], None).complete_through_ns == at(100)


def test_a_closed_process_holds_nothing_back() -> None:
    found = decide_frontier(at(100), [progress("a", 10, closed=True)], None)
    assert found.complete_through_ns == at(100)


def test_a_dead_process_holds_back_until_a_later_full_pass() -> None:
    dead = progress("a", 10, newest_s=11)
    too_early, late_enough = (
        at(11 + JOURNAL_REPLACED_AFTER_S - 1),
        at(11 + JOURNAL_REPLACED_AFTER_S),
    )
    assert JOURNAL_REPLACED_AFTER_S > FENCE_S
    assert decide_frontier(at(1000), [dead], None).complete_through_ns == at(10)
    assert decide_frontier(at(1000), [dead], too_early).complete_through_ns == at(10)
    assert decide_frontier(at(1000), [dead], late_enough).complete_through_ns == at(1000)


def test_a_full_pass_never_replaces_the_journal_of_a_spool() -> None:
    spool = progress("a", 10, acceptance="local_spool")
    assert decide_frontier(at(9000), [spool], at(8000)).complete_through_ns == at(10)


def test_a_later_registration_of_a_spool_and_a_full_pass_replace_the_earlier_one() -> None:
    """Objects of the earlier journal may not be processed yet; the pass lists what they name."""
    old = progress(process_name(at(5), ULID), 10, acceptance="local_spool")
    new = progress(process_name(at(50), ULID), 20, acceptance="local_spool")
    for pass_s, through_s in ((None, 10), (49, 10), (50, 20)):
        began = None if pass_s is None else at(pass_s)
        assert decide_frontier(at(9000), [old, new], began).complete_through_ns == at(through_s)


def test_a_switch_away_and_a_later_full_pass_replace_a_spool() -> None:
    """The spool was empty and locked at the switch, so a later pass lists what it accepted."""
    spool = progress(process_name(at(5), ULID), 10, acceptance="local_spool")
    left = at(100)

    def through(pass_s: float | None) -> UnixNs:
        began = None if pass_s is None else at(pass_s)
        return decide_frontier(at(500), [spool], began, left).complete_through_ns

    assert through(None) == at(10)
    assert through(99) == at(10), "the pass began before the switch"
    assert through(100) == at(500)


def test_a_spool_registered_after_the_switch_is_not_replaced_by_it() -> None:
    """The authority was switched back: its batches may be in the spool only."""
    spool = progress(process_name(at(101), ULID), 110, acceptance="local_spool")
    found = decide_frontier(at(500), [spool], at(400), at(100))
    assert found.complete_through_ns == at(110)


def test_a_switch_does_not_replace_a_process_that_accepts_in_the_store() -> None:
    process = progress(process_name(at(5), ULID), 450, newest_s=450)
    found = decide_frontier(at(500), [process], at(480), at(100))
    assert found.complete_through_ns == at(450)


def test_the_time_in_the_name_of_a_process_is_parsed() -> None:
    assert started_ns_of(PROCESS) == 5
    with pytest.raises(InvalidRecord):
        started_ns_of("5-x")
