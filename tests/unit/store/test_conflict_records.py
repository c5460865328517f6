"""What an operator is shown of a conflict whose bytes differ, or cannot be read."""

import asyncio

import pytest
from support.builders import (
    conflict_manifest,
    later_release,
    log_columns,
    make_identity,
    salted_frame,
)
from support.memory_bucket import open_memory_store

from sluice_protocol.conflicts import ConflictName
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import encode_record
from sluice_store.conflicts import ConflictRecords, read_conflict_records

WHO = make_identity(0, count=1)
OURS, THEIRS = (salted_frame(WHO, log_columns([body])) for body in ("ours", "theirs"))


def records_of(submitted: bytes) -> ConflictRecords:
    """Store a conflict of `submitted` with the accepted bytes, and compare both."""

    async def main() -> ConflictRecords | None:
        store, _ = open_memory_store()
        name = ConflictName(identity=WHO, submitted=digest_of(submitted))
        record = conflict_manifest(WHO, accepted=digest_of(OURS), submitted=name.submitted)
        await store.create(name.key, encode_record(record))
        for blob in (OURS, submitted):
            await store.create(blob_key(digest_of(blob)), blob)
        return await read_conflict_records(store, name, 10)

    found = asyncio.run(main())
    assert found is not None
    return found


def test_the_records_that_differ_are_paired() -> None:
    found = records_of(THEIRS)
    assert (found.accepted_problem, found.submitted_problem, found.more) == ("", "", False)
    assert len(found.pairs) == 1


@pytest.mark.parametrize(
    ("submitted", "problem"),
    [
        (later_release(THEIRS)[0], "unsupported version of frame: a newer version"),
        (b"no frame", "invalid frame"),
    ],
    ids=["later release", "no frame"],
)
def test_a_side_that_cannot_be_read_has_a_reason(submitted: bytes, problem: str) -> None:
    """A frame of a later release is not damaged: the reader has to be upgraded."""
    found = records_of(submitted)
    assert found.accepted_problem == ""
    assert found.submitted_problem.startswith(f"the blob cannot be read: {problem}")
    assert (found.pairs, found.more) == ((), False)
