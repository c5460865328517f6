"""The clauses of expiry, and the records of rules, holds and tombstones."""

import random
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from support.builders import conflict_manifest, make_identity, manifest

from sluice_protocol import expiry as e
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import Clause, MustKeep
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.identity import Identity
from sluice_protocol.keys import accepted_key, digest_of, tombstone_hours
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S, Digest, UnixNs

DAY_NS = 86_400 * NS_PER_S
NAMED, OTHER = digest_of(b"blob"), digest_of(b"other")
ROWS = e.RowTally(rows=3, content="c")
PROVED = e.BatchEvidence(
    named=NAMED,
    accepted_at_ns=UnixNs(1_000 * DAY_NS),
    appeared_at_ns=UnixNs(1_000 * DAY_NS),
    retry_horizon_ns=7 * DAY_NS,
    keep_ns=30 * DAY_NS,
    vacuum_ns=8 * DAY_NS,
    now_ns=UnixNs(1_031 * DAY_NS),
    audit_started_at_ns=UnixNs(1_030 * DAY_NS),
    audit_found_wrong=False,
    blob=NAMED,
    ledger=NAMED,
    blob_rows=ROWS,
    table_rows=ROWS,
    enqueued=True,
    unacknowledged=False,
    dead_letter=False,
    quarantined=False,
    held=False,
)

KEPT = [
    (Clause.RULE, {"keep_ns": 14 * DAY_NS - 1}),
    (Clause.AGE, {"now_ns": None}),
    (Clause.AGE, {"vacuum_ns": None}),
    (Clause.AGE, {"now_ns": UnixNs(1_030 * DAY_NS)}),
    (Clause.AGE, {"vacuum_ns": 40 * DAY_NS}),
    (Clause.AGE, {"appeared_at_ns": UnixNs(1_005 * DAY_NS)}),
    (Clause.CERTIFICATE, {"audit_started_at_ns": None}),
    (Clause.CERTIFICATE, {"audit_started_at_ns": UnixNs(1_007 * DAY_NS)}),
    (Clause.CERTIFICATE, {"audit_found_wrong": True}),
    (Clause.BLOB, {"blob": None}),
    (Clause.BLOB, {"blob": OTHER}),
    (Clause.LEDGER, {"ledger": None}),
    (Clause.LEDGER, {"ledger": OTHER}),
    (Clause.ROWS, {"blob_rows": None}),
    (Clause.ROWS, {"table_rows": None}),
    (Clause.ROWS, {"table_rows": changed(ROWS, rows=2)}),
    (Clause.ROWS, {"table_rows": changed(ROWS, content="d")}),
    (Clause.CONSUMERS, {"enqueued": False}),
    (Clause.CONSUMERS, {"unacknowledged": True}),
    (Clause.DEAD_LETTER, {"dead_letter": True}),
    (Clause.CONFLICT, {"quarantined": True}),
    (Clause.HELD, {"held": True}),
]


def test_a_proved_batch_may_expire() -> None:
    assert e.decide_expiry(PROVED) == e.MayExpire()


@pytest.mark.parametrize(("clause", "change"), KEPT)
def test_each_clause_alone_keeps(clause: Clause, change: dict[str, object]) -> None:
    evidence = replace(PROVED, **change)  # type: ignore[arg-type]
    kept = e.decide_expiry(evidence)
    assert isinstance(kept, MustKeep)
    assert kept.clause is clause
    others = [check for check in e.EXPIRY_CLAUSES if check(evidence) is None]
    assert len(others) == len(e.EXPIRY_CLAUSES) - 1
    assert e.decide_expiry(evidence, others) == e.MayExpire()


@pytest.mark.parametrize("name", [one.name for one in fields(PROVED) if one.default is None])
def test_evidence_that_was_not_read_keeps(name: str) -> None:
    unread = replace(PROVED, **{"matches": 1, name: None})
    by_rule = isinstance(e.decide_expiry(unread), MustKeep)
    by_erasure = isinstance(e.decide_expiry(unread, e.ERASURE_CLAUSES), MustKeep)
    assert by_rule == (name != "matches")
    assert by_erasure == (name not in ("keep_ns", "vacuum_ns", "now_ns", "quarantined"))
    refused = isinstance(e.decide_expiry(unread, e.REFUSED_CLAUSES), MustKeep)
    wanted = ("matches", "appeared_at_ns", "audit_started_at_ns", "audit_found_wrong", "held")
    assert refused == (name in wanted)
    for clauses in (e.ERASURE_CLAUSES, e.REFUSED_CLAUSES):
        assert isinstance(e.decide_expiry(replace(PROVED, matches=1), clauses), e.MayExpire)


def test_a_rule_is_no_shorter_than_the_horizon_and_seven_days() -> None:
    authority = Authority(authority_id="A")
    e.check_keep_s(authority, None)
    e.check_keep_s(authority, 14 * 86_400)
    with pytest.raises(BadUsage, match="use 14d or more, raw=`13d`"):
        e.check_keep_s(authority, 13 * 86_400)


HOLD = e.LegalHold(
    hold_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
    case="C-1",
    reason="litigation",
    held_by="ann",
    review_at_unix_ns=20,
    held_at_unix_ns=10,
)


def test_a_hold_covers_what_meets_every_condition() -> None:
    batch = manifest(0, agent="host-1", at_ns=1_000)
    assert HOLD.covers(batch)
    assert changed(HOLD, agent_id="host-1", from_unix_ns=1_000, to_unix_ns=1_001).covers(batch)
    for missed in (
        {"agent_id": "host-2"},
        {"principal": "nobody"},
        {"from_unix_ns": 1_001},
        {"to_unix_ns": 1_000},
    ):
        assert not changed(HOLD, **missed).covers(batch)
    assert not e.Holds(active=(changed(HOLD, agent_id="host-2"),)).covers(batch)
    refused = conflict_manifest(
        batch.identity, accepted=batch.digest, submitted=batch.digest, at_ns=1_000
    )
    assert changed(HOLD, agent_id="host-1", from_unix_ns=1_000, to_unix_ns=1_001).covers(refused)
    assert changed(HOLD, principal="nobody").covers(refused), "who sent them is not recorded"
    for missed in ({"agent_id": "host-2"}, {"from_unix_ns": 1_001}, {"to_unix_ns": 1_000}):
        assert not changed(HOLD, **missed).covers(refused)
    assert e.Holds(unreadable=(InvalidRecord("retention/v1/holds/x.json", "bad"),)).covers(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"case": " "}, "needs a case"),
        ({"reason": ""}, "needs a reason"),
        ({"reason": "x" * 1_001}, "at most 1000 characters"),
        ({"from_unix_ns": 5, "to_unix_ns": 5}, "ends before it starts"),
        ({"review_at_unix_ns": 10}, "is not in the future"),
    ],
)
def test_a_hold_states_who_and_why(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        e.check_hold(changed(HOLD, **change))


HOUR = 490_899
"""2026-01-01, 03:00."""
TOMBSTONE = e.Tombstone(
    run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
    part=0,
    first_hour=HOUR,
    last_hour=HOUR + 25,
    authority_id="A",
    rule=1,
    keep_s=30 * 86_400,
    audit_id="01ARZ3NDEKTSV4RRFFQ69G5FAW",
    certificate_sha256=OTHER,
    tables={"logs": e.TableVersion(version=4, commit_sha256=OTHER)},
    deletes=2,
    made_at_unix_ns=5,
    compared={"logs": ROWS},
    boots=e.group_by_boot([(make_identity(3), NAMED), (make_identity(9, count=4), OTHER)]),
)
SIGNED = e.SignedTombstone(tombstone=TOMBSTONE, key_id="k", signature="s")


def test_a_tombstone_is_read_as_it_was_written() -> None:
    assert e.decode_tombstone(TOMBSTONE.key, e.encode_tombstone(SIGNED)) == SIGNED


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        e.encode_tombstone(SIGNED)[:-1],
        e.encode_tombstone(SIGNED) + b"x",
        encode_record(SIGNED),
        e.encode_tombstone(changed(SIGNED, tombstone=changed(TOMBSTONE, part=1))),
        *(
            e.encode_tombstone(
                changed(SIGNED, tombstone=changed(TOMBSTONE, boots=(e.ExpiredBoot(*boot),)))
            )
            for boot in (
                ("host-1", "b1", (0, 1), ""),
                ("host-1", "b1", (0, 1), "A" * 86 + "=="),
                ("host-1", "b1", (0, 1), "*" * 44),
                ("host-1", "b1", (0, 1, 2), "A" * 43 + "="),
                ("host-1", "b1", (0, 0), "A" * 43 + "="),
                ("host-1", "b1", (-1, 1), "A" * 43 + "="),
                ("", "b1", (0, 1), "A" * 43 + "="),
            )
        ),
    ],
)
def test_a_damaged_tombstone_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRecord):
        e.decode_tombstone(TOMBSTONE.key, body)


def test_the_key_of_a_tombstone_names_its_hours() -> None:
    assert TOMBSTONE.key == (
        "expired/v1/date=2026-01-02/hour=04/2026-01-01T03-01ARZ3NDEKTSV4RRFFQ69G5FAV-000000.json.z"
    )
    assert tombstone_hours(TOMBSTONE.key) == range(HOUR, HOUR + 26)
    assert not tombstone_hours(TOMBSTONE.key.replace("2026-01-01T", "2026-13-01T"))
    assert not tombstone_hours("expired/v1/x")


IDENTITIES = st.builds(
    lambda agent, boot, start, count: make_identity(start, count=count, agent=agent, boot=boot),
    st.sampled_from(["host-1", "host-2", "ä"]),
    st.sampled_from(["b1", "b2"]),
    st.integers(0, 100) | st.integers(0, 2**62),
    st.integers(1, 10) | st.integers(1, 2**62),
)


@given(st.dictionaries(IDENTITIES, st.binary(min_size=32, max_size=32)), IDENTITIES)
def test_a_tombstone_names_exactly_its_batches(hashes: dict[Identity, bytes], no: Identity) -> None:
    """Batches of a boot may overlap, and have gaps between them."""
    batches = {who: Digest(sha256.hex()) for who, sha256 in hashes.items()}
    signed = changed(SIGNED, tombstone=changed(TOMBSTONE, boots=e.group_by_boot(batches.items())))
    read = e.decode_tombstone(TOMBSTONE.key, e.encode_tombstone(signed)).tombstone
    assert dict(read.named()) == {accepted_key(who): one for who, one in batches.items()}
    boots = {(one.agent_id, one.boot_id): one for one in read.boots}
    for who, digest in batches.items():
        boot = boots[who.agent_id, who.boot_id]
        index = e.BootIndex(boot)
        assert index.names(who, digest)
        assert not index.names(who, OTHER)
        other = changed(no, agent_id=who.agent_id, boot_id=who.boot_id)
        assert index.names(other, digest) == (batches.get(other) == digest)


def test_the_hash_of_contents_is_a_sum() -> None:
    one, two = e.RowTally(rows=1, content="f-1"), e.RowTally(rows=2, content="1-ff")
    assert one.plus(two) == e.RowTally(rows=3, content="10-100")


def test_a_batch_costs_36_bytes_of_a_tombstone() -> None:
    rng = random.Random(1)
    batches = [
        (make_identity(100 * n, count=rng.randrange(1, 100), agent=f"host-{agent}"), sha256)
        for agent in range(10)
        for n in range(1_000)
        for sha256 in [Digest(rng.randbytes(32).hex())]
    ]
    whole = changed(SIGNED, tombstone=changed(TOMBSTONE, boots=e.group_by_boot(batches)))
    assert len(e.encode_tombstone(whole)) < 36 * len(batches)
