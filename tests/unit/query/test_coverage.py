"""How complete an answer is, decided from what was read before the queue."""

import pytest
from support.constants import settings_with
from support.query_lake import DAY0_NS, log_batch, make_query

from sluice_protocol.keys import accepted_key
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.coverage import Coverage, HeldBatch, NewBatch, decide_completeness
from sluice_query.settings import QuerySettings

SETTINGS = settings_with(QuerySettings, max_staleness_s=60)
NOW = UnixNs(DAY0_NS + 7200 * NS_PER_S)
"""The end of the queried range is later than this, except where a test sets it."""
BATCH = log_batch(["a"]).manifest
OLDER = log_batch(["b"], start=1).manifest


def before(seconds: float) -> UnixNs:
    return UnixNs(NOW - int(seconds * NS_PER_S))


def new(seconds: float = 5) -> NewBatch:
    return NewBatch(manifest=BATCH, created_ns=before(seconds))


@pytest.mark.parametrize(
    ("age_s", "to_ns", "partial"),
    [
        (59, NOW, False),
        (61, NOW, True),
        (61, before(61), False),
        (61, before(60.5), True),
        (3600, before(3600), False),
    ],
)
def test_an_old_discovery_makes_an_answer_to_the_present_partial(
    age_s: float, to_ns: UnixNs, partial: bool
) -> None:
    """Without a listing, the last full pass must be recent or not older than the range."""
    coverage = Coverage(now_ns=NOW, discovered_ns=before(age_s))
    found = decide_completeness(coverage, make_query(to_ns=to_ns), SETTINGS, ())
    assert found.accepted_until_ns == before(age_s)
    assert bool(found.reasons) is partial
    if partial:
        assert found.reasons[0].startswith("batches accepted after 2026-09-21T")


def test_without_any_discovery_an_answer_is_partial() -> None:
    found = decide_completeness(Coverage(now_ns=NOW), make_query(), SETTINGS, ())
    assert found.accepted_until_ns is None
    assert found.reasons == (
        "accepted batches may be missing: no recent full pass of a reconciler is known",
    )


def test_a_new_batch_that_is_nowhere_makes_the_answer_partial() -> None:
    """However recent the discovery is; the answer is complete up to the batch's creation."""
    coverage = Coverage(now_ns=NOW, discovered_ns=before(6), new=(new(),))
    found = decide_completeness(coverage, make_query(), SETTINGS, ())
    assert found.accepted_until_ns == before(5)
    assert found.reasons[0].startswith("1 accepted batch is not enqueued yet")


@pytest.mark.parametrize("discovered_ns", [None, before(86_400)])
def test_a_listing_without_missing_batches_replaces_the_discovery(
    discovered_ns: UnixNs | None,
) -> None:
    coverage = Coverage(now_ns=NOW, discovered_ns=discovered_ns, new=(new(),))
    shown = {BATCH.identity}
    assert decide_completeness(coverage, make_query(), SETTINGS, shown).reasons == ()
    assert decide_completeness(coverage, make_query(), SETTINGS, shown).accepted_until_ns == NOW
    other = decide_completeness(coverage, make_query(kind="metrics"), SETTINGS, ())
    assert (other.reasons, other.accepted_until_ns) == ((), NOW)


def test_a_held_batch_is_one_reason_and_not_reported_as_not_enqueued() -> None:
    held = HeldBatch(key=accepted_key(BATCH.identity), reason="blob_missing")
    coverage = Coverage(now_ns=NOW, held=(held,), new=(new(),))
    found = decide_completeness(coverage, make_query(), SETTINGS, ())
    assert len(found.reasons) == 1
    assert found.reasons[0].startswith("1 batch is held back")
    assert "blob_missing" in found.reasons[0]


def test_a_spool_that_is_not_searched_makes_the_answer_partial() -> None:
    coverage = Coverage(now_ns=NOW, discovered_ns=NOW, in_other_spool=True, new=())
    found = decide_completeness(coverage, make_query(), SETTINGS, ())
    assert found.accepted_until_ns is None
    assert "--spool" in found.reasons[0]


def test_what_could_not_be_read_is_a_reason() -> None:
    found = decide_completeness(Coverage(problems=("no",)), make_query(), SETTINGS, ())
    assert (found.accepted_until_ns, found.reasons) == (None, ("no",))
