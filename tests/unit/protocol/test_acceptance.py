"""The acceptance of one upload, step by step."""

import pytest

from sluice_protocol import acceptance as a
from sluice_protocol.errors import InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown, UnknownReason
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs

MINE, OTHER = Digest("a" * 64), Digest("b" * 64)
WINDOW_NS = 100
UNKNOWN = Unknown(reason=UnknownReason.TIMEOUT)


def offer(*, sent_before: bool = False) -> a.Offer:
    return a.Offer(
        identity=Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=9),
        digest=MINE,
        size_bytes=10,
        attempt_id="me",
        window_ns=WINDOW_NS,
        sent_before=sent_before,
    )


def applied(date: int) -> Applied:
    return Applied(etag=ETag("e"), incarnation=None, date_ns=UnixNs(date))


def exists(date: int = 0) -> Exists:
    return Exists(date_ns=UnixNs(date))


def missing(date: int = 0) -> NotFound:
    return NotFound(date_ns=UnixNs(date))


def blob(born: int, date: int, *, sha256: Digest | None = MINE, size: int = 10) -> ObjectInfo:
    return ObjectInfo(
        key=ObjectKey("k"),
        size_bytes=size,
        etag=ETag("e"),
        incarnation=ObjectVersion("1"),
        last_modified_ns=UnixNs(born),
        sha256=sha256,
        date_ns=UnixNs(date),
    )


def manifest(digest: Digest, born: int, attempt: str = "other") -> a.ManifestRead:
    return a.ManifestRead(
        digest=digest,
        attempt_id=attempt,
        accepted_at_ns=UnixNs(born),
        last_modified_ns=UnixNs(born),
        date_ns=UnixNs(born),
    )


def run(*observations: a.Observation, sent_before: bool = False) -> list[a.Action]:
    """Return the first action and the one after each observation."""
    now = a.begin(offer(sent_before=sent_before))
    actions = [now.action]
    for seen in observations:
        now = a.step(now, seen)
        actions.append(now.action)
    return actions


def names(*observations: a.Observation, sent_before: bool = False) -> list[str]:
    return [type(action).__name__ for action in run(*observations, sent_before=sent_before)]


def test_new_batch_takes_two_writes() -> None:
    """Blob, manifest, 200: accepted_at is the Date of the blob's response."""
    actions = run(applied(5), applied(6))
    assert actions == [
        a.CreateBlob(),
        a.CreateManifest(accepted_at_ns=UnixNs(5)),
        a.Accepted(duplicate=False, accepted_at_ns=UnixNs(5)),
    ]


@pytest.mark.parametrize(
    ("observations", "duplicate", "at"),
    [
        ((applied(5), UNKNOWN, exists(), manifest(MINE, 6, "me")), False, 6),
        ((exists(), blob(5, 20), exists(), manifest(MINE, 6)), True, 6),
        ((exists(), blob(0, 10_000), manifest(MINE, 50)), True, 50),
    ],
    ids=["own write after a lost response", "repeated bytes", "old blob with its proof"],
)
def test_the_same_bytes_are_accepted_as_a_duplicate_unless_this_attempt_wrote_them(
    observations: tuple[a.Observation, ...], duplicate: bool, at: int
) -> None:
    """The attempt id shows an own write; a manifest in time is a proof at any age of its blob."""
    actions = run(*observations)
    assert actions[-1] == a.Accepted(duplicate=duplicate, accepted_at_ns=UnixNs(at))


def test_other_bytes_are_quarantined_before_the_response() -> None:
    actions = run(applied(5), exists(), manifest(OTHER, 4), UNKNOWN, applied(7))
    quarantine = a.CreateQuarantine(accepted_digest=OTHER, observed_at_ns=UnixNs(5))
    assert actions[3:] == [quarantine, quarantine, a.Conflict(accepted_digest=OTHER)]


def test_existing_quarantine_has_its_own_date() -> None:
    observations = (applied(5), exists(), manifest(OTHER, 4), exists())
    assert names(*observations)[-1] == "HeadQuarantine"
    assert run(*observations, blob(3, 9))[-1] == a.Conflict(accepted_digest=OTHER)


def test_old_blob_is_written_again() -> None:
    """An orphan as old as the window is written again, and the new write is the proof."""
    observed = names(exists(), blob(0, WINDOW_NS), missing(), applied(WINDOW_NS + 1))
    assert observed == ["CreateBlob", "HeadBlob", "ReadManifest", "OverwriteBlob", "CreateManifest"]


@pytest.mark.parametrize("found", [manifest(MINE, 500), manifest(OTHER, 5)])
def test_old_blob_is_refreshed_where_its_manifest_proves_nothing(found: a.ManifestRead) -> None:
    """A manifest that appeared too late, or names other bytes, does not prove an old blob."""
    assert names(exists(), blob(0, 10_000), found)[-1] == "OverwriteBlob"


def test_manifest_too_late_for_its_blob_proves_the_blob_again() -> None:
    """If m - proved_at = window, the blob is proved again; the manifest is kept."""
    actions = run(applied(0), applied(WINDOW_NS), exists(), blob(0, WINDOW_NS), applied(150))
    assert actions[2:] == [
        a.CreateBlob(),
        a.HeadBlob(),
        a.OverwriteBlob(),
        a.Accepted(duplicate=False, accepted_at_ns=UnixNs(0)),
    ]


def test_late_quarantine_proves_the_submitted_blob_again() -> None:
    """The same rule applies to a 409."""
    observed = names(applied(0), exists(), manifest(OTHER, 1), applied(WINDOW_NS), applied(101))
    assert observed[-2:] == ["CreateBlob", "Conflict"]


def test_wrong_blob_is_replaced_and_reported() -> None:
    """Bytes that do not match their key are overwritten, and the alert is raised."""
    now = a.begin(offer())
    for seen in (exists(), blob(0, 1, sha256=OTHER)):
        now = a.step(now, seen)
    assert (now.action, now.healed) == (a.OverwriteBlob(), True)
    assert isinstance(a.step(now, a.OverwriteRefused(reason="locked")).action, a.Corrupt)


def test_blob_of_another_size_is_wrong_without_reading_it() -> None:
    assert names(exists(), blob(0, 1, sha256=None, size=9))[-1] == "OverwriteBlob"


def test_blob_without_checksum_is_hashed() -> None:
    observed = names(exists(), blob(0, 1, sha256=None), a.BlobHashed(info=blob(0, 2), digest=MINE))
    assert observed[-2:] == ["HashBlob", "CreateManifest"]


def test_blob_missing_twice_is_written_without_a_condition() -> None:
    """Some servers respond 412 over a delete marker, so the second write has no condition."""
    observed = names(exists(), missing(), exists(), missing())
    assert observed == ["CreateBlob", "HeadBlob", "CreateBlob", "HeadBlob", "OverwriteBlob"]


def test_policy_against_overwrites_ends_in_503() -> None:
    """If If-None-Match is required, an old orphan needs garbage collection first."""
    observed = names(exists(), blob(0, 10_000), missing(), a.OverwriteRefused(reason="policy"))
    assert observed[-1] == "RetriesExhausted"


def test_empty_read_proves_nothing() -> None:
    """After 412, a read that finds nothing leads to another create, never to a verdict."""
    assert names(applied(0), exists(), missing())[-1] == "CreateManifest"


def test_accepted_at_is_fixed_before_the_first_try() -> None:
    """Every try of the manifest contains the same time, so it has the same bytes."""
    actions = run(applied(5), UNKNOWN, exists(), missing())
    creates = [action for action in actions if isinstance(action, a.CreateManifest)]
    assert creates == [a.CreateManifest(accepted_at_ns=UnixNs(5))] * 3


def test_retry_reads_the_manifest_and_then_the_blob() -> None:
    """`Sluice-Retry: 1` reads the manifest first; then the blob decides, at any age, without a
    write.
    """
    actions = run(manifest(MINE, 50), blob(0, 10_000), sent_before=True)
    assert [type(x).__name__ for x in actions] == ["ReadManifest", "HeadBlob", "Accepted"]


def test_retry_with_a_late_manifest_writes_the_blob_again() -> None:
    """A retry also needs a proof for every 200."""
    observed = names(manifest(MINE, 500), blob(0, 10_000), applied(10_001), sent_before=True)
    assert observed[-2:] == ["OverwriteBlob", "Accepted"]


def test_retry_without_manifest_starts_with_the_blob() -> None:
    assert names(missing(), sent_before=True)[-1] == "CreateBlob"


def test_unreadable_manifest_is_never_success() -> None:
    """An object under the identity's key that is not a manifest raises an alert."""
    assert names(applied(0), exists(), a.ManifestUnreadable(reason="not JSON"))[-1] == "Corrupt"


def test_unknown_outcomes_are_bounded() -> None:
    """Every unknown outcome uses a try; the last one ends in 503."""
    assert names(*[UNKNOWN] * a.TRIES_MAX)[-2:] == ["CreateBlob", "RetriesExhausted"]


OBSERVATIONS: tuple[a.Observation, ...] = (
    applied(0),
    exists(),
    missing(),
    blob(0, 0),
    a.BlobHashed(info=blob(0, 0), digest=MINE),
    manifest(MINE, 0),
    a.ManifestUnreadable(reason="r"),
    a.OverwriteRefused(reason="r"),
)
LEGAL = {
    a.CreateBlob: (Applied, Exists),
    a.HeadBlob: (ObjectInfo, NotFound),
    a.HashBlob: (a.BlobHashed, NotFound),
    a.OverwriteBlob: (Applied, a.OverwriteRefused),
    a.ReadManifest: (a.ManifestRead, a.ManifestUnreadable, NotFound),
    a.CreateManifest: (Applied, Exists),
    a.CreateQuarantine: (Applied, Exists),
    a.HeadQuarantine: (ObjectInfo, NotFound),
    a.Accepted: (),
    a.Conflict: (),
    a.Corrupt: (),
    a.RetriesExhausted: (),
}
STANDING = a.KnownManifest(
    digest=OTHER, own=False, accepted_at_ns=UnixNs(0), appeared_at_ns=UnixNs(0)
)
DOING: tuple[a.Action, ...] = (
    *(a.CreateBlob(), a.HeadBlob(), a.HashBlob(), a.OverwriteBlob(), a.ReadManifest()),
    a.CreateManifest(accepted_at_ns=UnixNs(0)),
    a.CreateQuarantine(accepted_digest=OTHER, observed_at_ns=UnixNs(0)),
    *(a.HeadQuarantine(), a.RetriesExhausted(), a.Corrupt(reason="r")),
    a.Accepted(duplicate=False, accepted_at_ns=UnixNs(0)),
    a.Conflict(accepted_digest=OTHER),
)


@pytest.mark.parametrize("action", DOING, ids=lambda action: type(action).__name__)
def test_illegal_observation_raises(action: a.Action) -> None:
    """An observation that does not belong to the action raises; every other one is accepted."""
    now = a.Progress(
        offer=offer(),
        action=action,
        proved_at_ns=UnixNs(0),
        date_ns=UnixNs(0),
        accepted_at_ns=UnixNs(0),
        manifest=STANDING if isinstance(action, a.HeadQuarantine | a.CreateQuarantine) else None,
    )
    for seen in OBSERVATIONS:
        if isinstance(seen, LEGAL[type(action)]):
            assert a.step(now, seen) is not now
        else:
            with pytest.raises(InvariantViolated):
                a.step(now, seen)


def test_every_action_has_its_legal_observations() -> None:
    """The table above covers every action, so no action is untested."""
    assert {type(action) for action in DOING} == set(LEGAL)
