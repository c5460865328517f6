"""Events and inventories of the bucket in memory, with the delays that S3 has.

Source: Amazon S3 User Guide, "Event message structure" and "Amazon S3 Inventory". Events come at
least once and in any order, their keys are URL-encoded; an inventory is no point in time and lags.
"""

import random
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote_plus

from support.memory_bucket.bucket import BucketChange, BucketVersion, MemoryBucket

from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ListedObject

REPEATED: Final = 0.1
"""The share of events that are delivered twice."""


class EventFeed:
    """The events of a bucket for one consumer: late, out of order, some of them twice."""

    def __init__(self, bucket: MemoryBucket, rng: random.Random) -> None:
        """Start with the next change."""
        self._bucket = bucket
        self._rng = rng
        self._seen = len(bucket.changes)
        self._waiting: list[Mapping[str, object]] = []

    def deliver(self, most: int) -> list[Mapping[str, object]]:
        """Return up to `most` pending events in any order; a repeated one stays pending."""
        fresh = self._bucket.changes[self._seen :]
        first, self._seen = self._seen, len(self._bucket.changes)
        self._waiting += [
            _event(self._bucket.name, change, first + i) for i, change in enumerate(fresh)
        ]
        self._rng.shuffle(self._waiting)
        given, self._waiting = self._waiting[:most], self._waiting[most:]
        self._waiting += [event for event in given if self._rng.random() < REPEATED]
        return given


def _event(bucket: str, change: BucketChange, number: int) -> Mapping[str, object]:
    marker = change.version.body is None
    removed = "ObjectRemoved:DeleteMarkerCreated" if marker else "ObjectRemoved:Delete"
    described: dict[str, object] = {
        "key": quote_plus(change.key, safe="/"),
        "versionId": change.version.incarnation,
        "sequencer": f"{number:016X}",
    }
    if change.created:
        described["size"] = len(change.version.body or b"")
        described["eTag"] = change.version.etag.strip('"')
    return {
        "eventVersion": "2.4",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put" if change.created else removed,
        "s3": {"bucket": {"name": bucket}, "object": described},
    }


def read_inventory(bucket: MemoryBucket, as_of_ns: UnixNs) -> list[ListedObject]:
    """Return the current objects as of a time in the past, in key order.

    Objects written since are missing, and objects deleted since are listed. So it may name
    candidates, and never proves an absence.
    """
    standing: dict[str, list[BucketVersion]] = {}
    for change in bucket.changes:
        if change.at_ns > as_of_ns:
            break
        versions = standing.setdefault(change.key, [])
        if change.created or change.version.body is None:
            versions.append(change.version)
        else:
            versions[:] = [v for v in versions if v.incarnation != change.version.incarnation]
    return [
        ListedObject(
            key=ObjectKey(key),
            size_bytes=len(versions[-1].body),
            etag=versions[-1].etag,
            last_modified_ns=versions[-1].last_modified_ns,
        )
        for key, versions in sorted(standing.items(), key=lambda item: item[0].encode())
        if versions and versions[-1].body is not None
    ]
