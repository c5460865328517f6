"""Planted omissions of the acceptance protocol, each a wrapper around the product's state machine.

They are the list of `docs/protocol.md`, Acceptance: the model checker must find a counterexample of
each, and none in the product itself.
"""

import dataclasses

from msgspec.structs import replace

from sluice_protocol import acceptance as a
from sluice_protocol.outcomes import Applied, Exists, NotFound, ObjectInfo, Unknown
from sluice_protocol.units import ETag, UnixNs

UNBOUNDED_NS = 10**6


def _with_window(now: a.Progress, window_ns: int) -> a.Progress:
    return replace(now, offer=replace(now.offer, window_ns=window_ns))


def _unbounded(now: a.Progress, seen: a.Observation) -> a.Progress:
    after = a.step(_with_window(now, UNBOUNDED_NS), seen)
    return _with_window(after, now.offer.window_ns)


def no_age_rule(now: a.Progress, seen: a.Observation) -> a.Progress:
    """An existing blob is taken as proof at any age, dated by the response."""
    if isinstance(now.action, a.HeadBlob) and isinstance(seen, ObjectInfo):
        seen = dataclasses.replace(seen, last_modified_ns=seen.date_ns)
    return a.step(now, seen)


def no_date_rule(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A manifest is accepted however long after the proof of its blob it appeared."""
    late = isinstance(now.action, a.CreateManifest | a.ReadManifest | a.CreateQuarantine)
    return _unbounded(now, seen) if late else a.step(now, seen)


def no_date_rule_on_exists(now: a.Progress, seen: a.Observation) -> a.Progress:
    """The date rule is applied to our own create but not to a manifest that was read."""
    return _unbounded(now, seen) if isinstance(now.action, a.ReadManifest) else a.step(now, seen)


def retry_without_head(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A retry that finds its manifest responds without reading the blob."""
    reads_first = isinstance(now.action, a.ReadManifest) and now.proved_at_ns is None
    if reads_first and isinstance(seen, a.ManifestRead) and seen.digest == now.offer.digest:
        return replace(now, action=a.Accepted(duplicate=True, accepted_at_ns=UnixNs(0)))
    return a.step(now, seen)


def retry_with_bare_head(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A retry that finds its manifest checks that the blob exists, but not its age."""
    if isinstance(now.action, a.HeadBlob) and now.manifest is not None:
        return _unbounded(now, seen)
    return a.step(now, seen)


def exists_is_success(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A 412 on the manifest is taken for our own success."""
    if isinstance(now.action, a.CreateManifest) and isinstance(seen, Exists):
        seen = Applied(etag=ETag("e"), incarnation=None, date_ns=seen.date_ns)
    return a.step(now, seen)


def unknown_is_failure(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A lost response is taken for a write that was not applied."""
    if isinstance(now.action, a.CreateManifest) and isinstance(seen, Unknown):
        return replace(now, action=a.RetriesExhausted())
    return a.step(now, seen)


def empty_read_is_proof(now: a.Progress, seen: a.Observation) -> a.Progress:
    """After a lost response the manifest is read, and its absence is taken for failure."""
    if isinstance(now.action, a.CreateManifest) and isinstance(seen, Unknown):
        return replace(now, action=a.ReadManifest())
    if isinstance(now.action, a.ReadManifest) and isinstance(seen, NotFound):
        return replace(now, action=a.RetriesExhausted())
    return a.step(now, seen)


def conflict_without_proof(now: a.Progress, seen: a.Observation) -> a.Progress:
    """A conflict is reported whatever the age of the submitted blob's proof."""
    quarantines = isinstance(now.action, a.CreateQuarantine | a.HeadQuarantine)
    return _unbounded(now, seen) if quarantines else a.step(now, seen)
