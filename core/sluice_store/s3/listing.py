"""Listings and settings of a bucket through the SDK, the deployment's prefix cut off."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from sluice_protocol.units import ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListedIncarnation, ListedObject, ListPage, Versioning
from sluice_store.s3.answers import datetime_ns, parse_http_date_ns
from sluice_store.s3.sdk import Sdk, sdk_errors


class SdkBucket:
    """Lists one bucket under the deployment's prefix."""

    def __init__(self, sdk: Sdk, prefix: str) -> None:
        """Takes the open SDK."""
        self._sdk = sdk
        self._prefix = prefix

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._sdk.address.bucket

    async def read_versioning(self) -> Versioning:
        """Reads whether the bucket keeps versions now."""
        with sdk_errors("read_versioning", self.name):
            answer = await self._sdk.client.get_bucket_versioning(Bucket=self.name)
        return Versioning(answer.get("Status") or Versioning.OFF)

    async def objects(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[ListPage]:
        """Gives pages of current objects."""
        query = {"Bucket": self.name, "Prefix": self._prefix + prefix}
        if start_after:
            query["StartAfter"] = self._prefix + start_after
        while True:
            with sdk_errors("list", prefix):
                answer = await self._sdk.client.list_objects_v2(**query)
            objects = [self._object(entry) for entry in answer.get("Contents", [])]
            kept = tuple(one for one in objects if _inside(one.key, start_after, end_at))
            more = bool(answer.get("IsTruncated")) and not _past(objects[-1:], end_at)
            yield ListPage(objects=kept, date_ns=_date_ns(answer), last=not more)
            if not more:
                return
            query["ContinuationToken"] = answer["NextContinuationToken"]

    async def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Gives pages of versions and delete markers."""
        query = {"Bucket": self.name, "Prefix": self._prefix + prefix}
        if start_after:
            query["KeyMarker"] = self._prefix + start_after
        before: set[tuple[str, str]] = set()
        while True:
            with sdk_errors("list_incarnations", prefix):
                answer = await self._sdk.client.list_object_versions(**query)
            found = [self._incarnation(one, marker=False) for one in answer.get("Versions", [])]
            marks = [self._incarnation(one, marker=True) for one in answer.get("DeleteMarkers", [])]
            both = sorted([*found, *marks], key=_newest_first)
            kept = tuple(
                one
                for one in both
                if _inside(one.key, start_after, end_at)
                and (one.key, one.incarnation)
                not in before  # versitygw repeats one at a page's edge
            )
            before = {(one.key, one.incarnation) for one in both}
            more = bool(answer.get("IsTruncated")) and not _past(both[-1:], end_at)
            yield IncarnationPage(incarnations=kept, date_ns=_date_ns(answer), last=not more)
            if not more:
                return
            query["KeyMarker"] = answer["NextKeyMarker"]
            query.pop("VersionIdMarker", None)  # a page may end between two keys
            if answer.get("NextVersionIdMarker"):
                query["VersionIdMarker"] = answer["NextVersionIdMarker"]

    def _key(self, entry: Mapping[str, Any]) -> ObjectKey:
        return ObjectKey(str(entry["Key"]).removeprefix(self._prefix))

    def _object(self, entry: Mapping[str, Any]) -> ListedObject:
        return ListedObject(
            key=self._key(entry),
            size_bytes=int(entry["Size"]),
            etag=ETag(entry["ETag"]),
            last_modified_ns=datetime_ns(entry["LastModified"]),
        )

    def _incarnation(self, entry: Mapping[str, Any], *, marker: bool) -> ListedIncarnation:
        return ListedIncarnation(
            key=self._key(entry),
            incarnation=ObjectVersion(entry.get("VersionId") or "null"),
            current=bool(entry["IsLatest"]),
            marker=marker,
            size_bytes=0 if marker else int(entry["Size"]),
            etag=ETag("" if marker else entry["ETag"]),
            last_modified_ns=datetime_ns(entry["LastModified"]),
        )


def _inside(key: str, start_after: str, end_at: str | None) -> bool:
    raw = key.encode()
    return raw > start_after.encode() and (end_at is None or raw <= end_at.encode())


def _past(last: list[ListedObject] | list[ListedIncarnation], end_at: str | None) -> bool:
    """Tells whether a page has gone beyond the end, so that the rest need not be asked for."""
    return end_at is not None and any(one.key.encode() > end_at.encode() for one in last)


def _newest_first(one: ListedIncarnation) -> tuple[bytes, bool, int]:
    """Orders a page; the sort is stable, so that equal stamps keep the order of the store."""
    return one.key.encode(), not one.current, -one.last_modified_ns


def _date_ns(answer: Mapping[str, Any]) -> UnixNs:
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    return parse_http_date_ns(headers.get("date", ""))
