"""The acceptance of an upload: every step of `sluice_protocol.acceptance` over a few values."""

from collections.abc import Iterator
from itertools import product
from typing import Final

from msgspec.structs import replace

from deploy.pictures.drawing import Drawing, DrawnState, Step, arrow
from sluice_protocol.acceptance import (
    BlobHashed,
    ManifestRead,
    ManifestUnreadable,
    Observation,
    Offer,
    OverwriteRefused,
    Progress,
    RetriesExhausted,
    StoreRequest,
    begin,
    step,
)
from sluice_protocol.errors import InvariantViolated
from sluice_protocol.identity import Identity
from sluice_protocol.outcomes import (
    Applied,
    Exists,
    NotFound,
    ObjectInfo,
    Unknown,
    UnknownReason,
)
from sluice_protocol.units import Digest, ETag, ObjectKey, UnixNs

_WINDOW_NS: Final = 100
_TIMES: Final = (UnixNs(0), UnixNs(2 * _WINDOW_NS))
"""Two moments that are further apart than a proof is valid."""
_OWN, _OTHER = Digest("a" * 64), Digest("b" * 64)
_ATTEMPTS: Final = ("this", "another")
_OFFER: Final = Offer(
    identity=Identity(agent_id="agent", boot_id="boot", seq_start=1, seq_end=1),
    digest=_OWN,
    size_bytes=1,
    attempt_id=_ATTEMPTS[0],
    window_ns=_WINDOW_NS,
)


def _infos() -> Iterator[ObjectInfo]:
    for size, sha256, modified, date in product((1, 2), (_OWN, _OTHER, None), _TIMES, _TIMES):
        yield ObjectInfo(
            key=ObjectKey("key"),
            size_bytes=size,
            etag=ETag("etag"),
            incarnation=None,
            last_modified_ns=modified,
            sha256=sha256,
            date_ns=date,
        )


def _observations() -> Iterator[Observation]:
    for date in _TIMES:
        yield Applied(etag=ETag("etag"), incarnation=None, date_ns=date)
        yield Exists(date_ns=date)
        yield NotFound(date_ns=date)
    for info in _infos():
        yield info
        for digest in (_OWN, _OTHER):
            yield BlobHashed(info=info, digest=digest)
    for digest, attempt, modified in product((_OWN, _OTHER), _ATTEMPTS, _TIMES):
        yield ManifestRead(
            digest=digest,
            attempt_id=attempt,
            accepted_at_ns=modified,
            last_modified_ns=modified,
            date_ns=modified,
        )
    yield ManifestUnreadable(reason="reason")
    yield OverwriteRefused(reason="reason")


def _bounded(now: Progress) -> Progress:
    """Return the state without its counters, so that the number of states is finite."""
    return replace(now, tries=0, gone=min(now.gone, 1))


def explore() -> frozenset[Step]:
    """Return every step over all reachable states.

    Raises:
        InvariantViolated: An unknown outcome does not repeat the action.
    """
    seen = tuple(_observations())
    steps: set[Step] = set()
    reached: set[Progress] = set()
    waiting: list[Progress] = []
    for event, sent_before in (("first", False), ("again", True)):
        now = begin(replace(_OFFER, sent_before=sent_before))
        steps.add(("start", event, type(now.action).__name__))
        waiting.append(now)
    while waiting:
        now = _bounded(waiting.pop())
        if now in reached or not isinstance(now.action, StoreRequest):
            continue
        reached.add(now)
        _check_unknown(now)
        for one in seen:
            try:
                after = step(now, one)
            except InvariantViolated:
                continue  # not an observation of this action
            steps.add((type(now.action).__name__, type(one).__name__, type(after.action).__name__))
            waiting.append(after)
    return frozenset(steps)


def _check_unknown(now: Progress) -> None:
    """Check what the summary of the picture states about unknown outcomes."""
    after = step(now, Unknown(reason=UnknownReason.TIMEOUT))
    last = step(replace(now, tries=10_000), Unknown(reason=UnknownReason.TIMEOUT))
    if after.action != now.action or not isinstance(last.action, RetriesExhausted):
        raise InvariantViolated(f"an unknown outcome does not repeat {now.action!r}")


DRAWING: Final = Drawing(
    name="acceptance",
    title="Acceptance of an upload",
    summary=(
        "The requests to the store for one upload, from its bytes to the verdict. An unknown"
        " outcome repeats the request; after 12 tries the response is 503."
    ),
    states=(
        DrawnState(name="start", title="an upload arrives", kind="start"),
        DrawnState(name="CreateBlob", title="create the blob", kind="action"),
        DrawnState(name="HeadBlob", title="read the metadata of the blob", kind="action"),
        DrawnState(name="HashBlob", title="read the blob and hash it", kind="action"),
        DrawnState(name="OverwriteBlob", title="write the blob again", kind="action"),
        DrawnState(
            name="decide",
            title="the blob is proved",
            kind="choice",
            note="whether in time: m minus proved_at",
        ),
        DrawnState(name="CreateManifest", title="create the manifest", kind="action"),
        DrawnState(name="ReadManifest", title="read the manifest", kind="action"),
        DrawnState(name="CreateQuarantine", title="create the quarantine manifest", kind="action"),
        DrawnState(name="HeadQuarantine", title="read when it appeared", kind="action"),
        DrawnState(name="Accepted", title="200: accepted", kind="good"),
        DrawnState(name="Conflict", title="409: identity_conflict", kind="bad"),
        DrawnState(name="Corrupt", title="500: corrupt_object", kind="bad"),
        DrawnState(name="RetriesExhausted", title="503: outcome_unknown", kind="bad"),
    ),
    edges=(
        arrow("start", "CreateBlob", "first time", "first"),
        arrow("start", "ReadManifest", "sent before", "again"),
        arrow("CreateBlob", "decide", "created", "Applied"),
        arrow("CreateBlob", "HeadBlob", "exists", "Exists"),
        arrow("HeadBlob", "decide", "correct, and young enough", "ObjectInfo"),
        arrow("HeadBlob", "HashBlob", "without a checksum", "ObjectInfo"),
        arrow("HeadBlob", "ReadManifest", "correct, but old", "ObjectInfo"),
        arrow("HeadBlob", "OverwriteBlob", "wrong, or missing again", "ObjectInfo", "NotFound"),
        arrow("HeadBlob", "CreateBlob", "missing", "NotFound"),
        arrow("HashBlob", "decide", "correct, and young enough", "BlobHashed"),
        arrow("HashBlob", "ReadManifest", "correct, but old", "BlobHashed"),
        arrow("HashBlob", "OverwriteBlob", "wrong", "BlobHashed"),
        arrow("HashBlob", "HeadBlob", "missing", "NotFound"),
        arrow("OverwriteBlob", "decide", "written", "Applied"),
        arrow("OverwriteBlob", "Corrupt", "refused, and the blob is wrong", "OverwriteRefused"),
        arrow("OverwriteBlob", "RetriesExhausted", "refused, and it is old", "OverwriteRefused"),
        arrow("decide", "CreateManifest", "no manifest is known"),
        arrow("decide", "Accepted", "manifest of this hash, in time"),
        arrow("decide", "CreateQuarantine", "manifest of another hash"),
        arrow("decide", "Conflict", "the same, recorded in time"),
        arrow("decide", "CreateBlob", "not in time: prove again"),
        arrow("CreateManifest", "decide", "created", "Applied"),
        arrow("CreateManifest", "ReadManifest", "exists", "Exists"),
        arrow("ReadManifest", "decide", "found, and the blob is proved", "ManifestRead"),
        arrow("ReadManifest", "HeadBlob", "found, of this hash", "ManifestRead"),
        arrow(
            "ReadManifest", "CreateBlob", "of another hash, or missing", "ManifestRead", "NotFound"
        ),
        arrow(
            "ReadManifest",
            "OverwriteBlob",
            "not in time after the blob",
            "ManifestRead",
            "NotFound",
        ),
        arrow("ReadManifest", "CreateManifest", "missing, and the blob is proved", "NotFound"),
        arrow("ReadManifest", "Corrupt", "not a manifest", "ManifestUnreadable"),
        arrow("CreateQuarantine", "decide", "created", "Applied"),
        arrow("CreateQuarantine", "HeadQuarantine", "exists", "Exists"),
        arrow("HeadQuarantine", "decide", "found", "ObjectInfo"),
        arrow("HeadQuarantine", "CreateQuarantine", "missing", "NotFound"),
    ),
    explore=explore,
)
