"""Conflict ids, the fold of decisions, and the difference of two frames."""

import itertools

import pytest
from support.gateway import frame_of, identity

from sluice_protocol.conflicts import (
    ConflictName,
    Decision,
    Decisions,
    difference_of,
    fold_decisions,
    parse_conflict_id,
)
from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import decode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import digest_of

NAME = ConflictName(
    identity=Identity(agent_id="hóst/1", boot_id="b", seq_start=3, seq_end=2**63 - 1),
    submitted=digest_of(b"x"),
)


def decision(decision_id: str, action: str, conflict_id: str = "c") -> Decision:
    return Decision(
        decision_id=decision_id,
        action=action,
        conflict_id=conflict_id,
        agent_id="a",
        boot_id="b",
        decided_by="ops",
        decided_at_unix_ns=0,
    )


def test_conflict_id_round_trip() -> None:
    """An id is one path segment that names exactly one key."""
    assert parse_conflict_id(NAME.id) == NAME
    assert "/" not in NAME.id


@pytest.mark.parametrize(
    "text",
    ["", "a", NAME.id.upper(), NAME.id + "0", NAME.id.replace(".", "/"), "ff." + NAME.id[3:]],
)
def test_conflict_id_of_another_form(text: str) -> None:
    with pytest.raises(BadUsage):
        parse_conflict_id(text)


def test_decisions_fold_in_any_order() -> None:
    """Order and repetition of reads do not matter; a quarantine is never lifted."""
    told = [
        decision("1", "quarantine_identity"),
        decision("2", "accept_existing"),
        decision("3", "accept_existing", "d"),
    ]
    folded = [fold_decisions(Decisions(), order) for order in itertools.permutations(told)]
    folded.append(fold_decisions(fold_decisions(Decisions(), told), told))
    assert all(one == folded[0] for one in folded)
    assert folded[0].state_of("c") == "accept_existing"
    assert folded[0].state_of("other") == "open"
    assert folded[0].quarantined == {("a", "b")}


def test_difference_names_the_first_record() -> None:
    """The difference contains the counts, the first position and both records."""
    ours = decode_frame(frame_of(identity(seq=7, count=2), "same"))
    theirs = decode_frame(frame_of(identity(seq=7, count=3), "same"))
    found = difference_of(ours, theirs)
    assert (found.accepted_count, found.submitted_count, found.differing_count) == (2, 3, 1)
    assert (found.first_seq, found.accepted_record) == (9, None)
    assert found.submitted_record is not None
    assert "same 2" in found.submitted_record


def test_difference_of_equal_records() -> None:
    """Frames that differ only in their encoding have no differing record."""
    who = identity(count=50)
    accepted = frame_of(who, compress=False)
    submitted = frame_of(who)
    assert submitted != accepted
    found = difference_of(decode_frame(accepted), decode_frame(submitted))
    assert (found.differing_count, found.first_seq) == (0, None)
