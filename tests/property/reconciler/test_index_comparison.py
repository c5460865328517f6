"""The comparison of a whole store and the naive one report the same about any damaged store.

The reference comparison of the derived indexes: two requests or more for every fact.

It looks up each entry of each source, and the source of each entry. The product reads everything
once instead; tests compare both.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.builders import conflict_manifest, manifest
from support.queue_store import SimStore
from support.repetitions import examples

from sluice_protocol.errors import InvalidFrame, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED,
    ACCEPTED_BY_BLOB,
    ACCEPTED_BY_TIME,
    QUARANTINE,
    QUARANTINE_BY_BLOB,
    RAW_BLOBS_BY_TIME,
    accepted_key,
    digest_of,
    pack_key,
    parse_accepted_key,
    parse_pack_key,
    parse_quarantine_key,
    quarantine_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    BlobReference,
    decode_accepted,
    decode_record,
    encode_record,
    encode_reference,
)
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.indexes import (
    DerivedDifference,
    DifferenceKind,
    SourceManifest,
    TimeEntry,
    by_blob_of,
    by_time_of,
    pack,
    quarantine_entry,
    unpack,
)
from sluice_reconciler.rebuild import EntryJoin, IndexComparison
from sluice_store.port import ListedObject, ObjectStore

INDEX_ROOTS: Final = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME, QUARANTINE_BY_BLOB)


class NaiveComparison:
    """The comparison of the derived indexes of one store with their sources, in both directions."""

    def __init__(self, store: ObjectStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests

    async def run(self) -> AsyncIterator[DerivedDifference]:
        """Return every index entry that is missing, extra, different or unreadable.

        Raises:
            StoreError: The store is unreachable or refused a request; the differences returned so
                far are correct.
        """
        for prefix, check in (
            (ACCEPTED, self._check_accepted),
            (QUARANTINE, self._check_quarantine),
            *((root, self._check_derived) for root in INDEX_ROOTS),
        ):
            async for difference in self._each(prefix, check):
                yield difference

    async def _each(
        self, prefix: str, check: Callable[[ListedObject], Awaitable[Sequence[DerivedDifference]]]
    ) -> AsyncIterator[DerivedDifference]:
        async for page in self._store.list(prefix):
            for found in await self._requests.each(page.objects, check):
                for difference in found:
                    yield difference

    async def _check_accepted(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Compare the three index entries of one accepted manifest."""
        batch = await _read_source(self._store, listed.key)
        if batch is None:
            return ()
        by_time, raw = by_time_of(batch)
        found = [
            await self._compare_entry(by_time),
            await self._compare_reference(batch),
            await self._compare_entry(raw, any_body=True),
        ]
        return [one for one in found if one is not None]

    async def _check_quarantine(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        try:
            who, submitted = parse_quarantine_key(listed.key)
        except InvalidRecord:
            return ()
        entry = quarantine_entry(listed.key, who, submitted)
        found = await _compare_object(self._store, *entry)
        return (found,) if found is not None else ()

    async def _compare_reference(self, batch: SourceManifest) -> DerivedDifference | None:
        """Compare a reverse reference with what exists; None if equal or if it is packed.

        The packed entry of the raw blob is a reverse reference too (ADR 27).

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        found = await _compare_object(self._store, *by_blob_of(batch))
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        return None if await self._packed(by_time_of(batch)[1]) is not None else found

    async def _compare_entry(
        self, entry: TimeEntry, *, any_body: bool = False
    ) -> DerivedDifference | None:
        """Compare a by-time entry, alone or packed, with what exists; return None if equal.

        Args:
            entry: The entry as its source defines it.
            any_body: Accept any bytes. Two batches with the same blob share one raw-blob entry, so
                its body may name either of them.

        Raises:
            StoreError: The store is unreachable or refused a request.
        """
        body = None if any_body else entry.body
        found = await _compare_object(self._store, entry.key, body)
        if found is None or found.wrong is not DifferenceKind.MISSING:
            return found
        digest = await self._packed(entry)
        packed = digest is not None and (body is None or digest == digest_of(body))
        return None if packed else found

    async def _packed(self, entry: TimeEntry) -> Digest | None:
        """Read every packed object of the hour, and return the hash of the entry in the last."""
        found = None
        folder = entry.key.rpartition("/")[0] + "/"
        async for page in self._store.list(folder):
            for one in page.objects:
                read = await self._store.get(one.key)
                if parse_pack_key(one.key) is not None and isinstance(read, Found):
                    with suppress(InvalidRecord):
                        body = dict(unpack(one.key, read.body)).get(entry.key)
                        found = found if body is None else digest_of(body)
        return found

    async def _check_derived(self, listed: ListedObject) -> Sequence[DerivedDifference]:
        """Check that a derived object, or each entry of a packed object, has a source."""
        match await self._store.get(listed.key):
            case NotFound():
                return ()
            case Found(body=body):
                pass
        try:
            entries = unpack(listed.key, body)
        except InvalidRecord as error:
            unreadable = DifferenceKind.UNREADABLE
            return (DerivedDifference(key=listed.key, wrong=unreadable, detail=error.reason),)
        pack = listed.key if parse_pack_key(listed.key) is not None else None
        found = [await self._check_source(*entry, pack) for entry in entries]
        return [one for one in found if one is not None]

    async def _check_source(
        self, key: ObjectKey, body: bytes, pack: ObjectKey | None
    ) -> DerivedDifference | None:
        try:
            source = _source_of(key, body)
            expected = await self._expected_body(key, source)
        except (InvalidRecord, InvalidFrame) as error:
            wrong, detail = DifferenceKind.UNREADABLE, error.reason
            return DerivedDifference(key=key, wrong=wrong, detail=detail, pack=pack)
        if expected is None:
            return DerivedDifference(key=key, wrong=DifferenceKind.EXTRA, detail=source, pack=pack)
        # The body of an entry that is not packed is compared when its source is checked.
        if pack is not None and expected != body:
            wrong = DifferenceKind.DIFFERENT
            return DerivedDifference(key=key, wrong=wrong, detail=source, pack=pack)
        return None

    async def _expected_body(self, key: ObjectKey, source: ObjectKey) -> bytes | None:
        """Return the body that a source defines for this key; None without such a source."""
        try:
            (parse_quarantine_key if source.startswith(QUARANTINE) else parse_accepted_key)(source)
        except InvalidRecord:
            return None  # no manifest has such a key
        match await self._store.get(source):
            case NotFound():
                return None
            case Found(body=body):
                pass
        if source.startswith(QUARANTINE):
            who, submitted = parse_quarantine_key(source)
            place, reference = quarantine_entry(source, who, submitted)
            return reference if place == key else None
        manifest = decode_accepted(source, body)
        batch = SourceManifest(key=source, manifest=manifest, body=body)
        entries = {one.key: one.body for one in by_time_of(batch)}
        return dict([*entries.items(), by_blob_of(batch)]).get(key)


async def _read_source(store: ObjectStore, key: ObjectKey) -> SourceManifest | None:
    """Read an accepted manifest without its blob; return None if it is missing or malformed.

    Nothing can be derived from a malformed manifest; the full pass writes a hold record for it.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    match await store.get(key):
        case NotFound():
            return None
        case Found(body=body):
            pass
    try:
        manifest = decode_accepted(key, body)
    except InvalidRecord:
        return None
    return SourceManifest(key=key, manifest=manifest, body=body)


async def _compare_object(
    store: ObjectStore, key: ObjectKey, body: bytes | None
) -> DerivedDifference | None:
    """Compare an object with the body it should have, None for any; return None if equal.

    Raises:
        StoreError: The store is unreachable or refused the request.
    """
    match await store.get(key):
        case NotFound():
            return DerivedDifference(key=key, wrong=DifferenceKind.MISSING)
        case Found(body=found) if body is not None and found != body:
            return DerivedDifference(key=key, wrong=DifferenceKind.DIFFERENT)
        case Found():
            return None


def _source_of(key: ObjectKey, body: bytes) -> ObjectKey:
    """Return the manifest that a derived object names."""
    if key.startswith(ACCEPTED_BY_TIME):
        return accepted_key(decode_record(key, body, AcceptedManifest).identity)
    return ObjectKey(decode_record(key, body, BlobReference).manifest_key)


BASE_NS = 1_699_999_200 * NS_PER_S
DERIVED = (ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, RAW_BLOBS_BY_TIME, QUARANTINE_BY_BLOB)


@dataclass(frozen=True)
class Layout:
    """How the entries of one batch are stored.

    Attributes:
        hour: The hour in which it was accepted.
        packs: The flushes that packed its entries; its entries are alone if there is none.
        referenced: Whether its reverse reference is alone, even if its entries are packed.
        quarantined: Whether other bytes were refused under its identity.
    """

    hour: int
    packs: frozenset[int]
    referenced: bool
    quarantined: bool


layouts = st.lists(
    st.builds(
        Layout,
        hour=st.integers(0, 2),
        packs=st.frozensets(st.integers(0, 2), max_size=2),
        referenced=st.booleans(),
        quarantined=st.booleans(),
    ),
    max_size=8,
)


def source_of(number: int, layout: Layout) -> SourceManifest:
    at_ns = BASE_NS + layout.hour * 3600 * NS_PER_S + number
    one = manifest(10 * number, agent=f"host-{number % 3}", at_ns=at_ns)
    key = accepted_key(one.identity)
    return SourceManifest(key=key, manifest=one, body=encode_record(one))


def built(given_layouts: Sequence[Layout]) -> SimStore:
    """Return an intact store with batches of these layouts."""
    store = SimStore()
    flushes: dict[int, list[TimeEntry]] = {}
    for number, layout in enumerate(given_layouts):
        source = source_of(number, layout)
        store._put(source.key, source.body)
        entries = by_time_of(source)
        for flush in layout.packs:
            flushes.setdefault(flush, []).extend(entries)
        if not layout.packs:
            for one in entries:
                store._put(one.key, one.body)
        if layout.referenced or not layout.packs:
            store._put(*by_blob_of(source))
        if layout.quarantined:
            refuse(store, source)
    for found in flushes.values():
        for key, body, count in pack(found):
            store._put(key, body)
            if count == 1 and key.startswith(RAW_BLOBS_BY_TIME):
                alone = next(one for one in by_time_of_all(given_layouts) if one[1].key == key)
                store._put(*by_blob_of(alone[0]))
    return store


def by_time_of_all(given_layouts: Sequence[Layout]) -> list[tuple[SourceManifest, TimeEntry]]:
    sources = [source_of(*one) for one in enumerate(given_layouts)]
    return [(source, by_time_of(source)[1]) for source in sources]


def refuse(store: SimStore, source: SourceManifest) -> None:
    submitted = Digest("ab" * 32)
    who = source.manifest.identity
    record = conflict_manifest(
        who, accepted=source.manifest.digest, submitted=submitted, at_ns=BASE_NS
    )
    key = quarantine_key(who, submitted)
    store._put(key, encode_record(record))
    store._put(*quarantine_entry(key, who, submitted))


class Damage:
    """One planted discrepancy: what is done to which of the objects of a store."""

    kinds = (
        *(
            "delete",
            "junk",
            "empty",
            "text",
            "other body",
            "spaces",
            "stray",
            "stray pack",
            "moved pack",
        ),
        *("other source", "nowhere", "no source", "late source", "junk source", "foreign"),
        *("packed wrong", "packed again", "packed junk", "alone wrong", "bad identity", "escape"),
    )

    def __init__(self, store: SimStore, at: int) -> None:
        self.store = store
        self.derived = sorted(key for key in store.held if key.startswith(DERIVED))
        self.sources = sorted(key for key in store.held if key.startswith((ACCEPTED, QUARANTINE)))
        self.packs = [key for key in self.derived if parse_pack_key(key)]
        self.at = at

    def do(self, kind: str) -> None:
        getattr(self, "_" + kind.replace(" ", "_"))()

    def _pick(self, keys: Sequence[str], more: int = 0) -> str | None:
        return keys[(self.at + more) % len(keys)] if keys else None

    def _set(self, keys: Sequence[str], body: bytes) -> None:
        if (key := self._pick(keys)) is not None:
            self.store._put(key, body)

    def _delete(self) -> None:
        self.store.held.pop(self._pick(self.derived) or "", None)

    def _junk(self) -> None:
        self._set(self.derived, b"{broken")

    def _empty(self) -> None:
        self._set(self.derived, b"")

    def _text(self) -> None:
        self._set(self.derived, b"\xff\xfe")

    def _other_body(self) -> None:
        if (other := self._pick(self.derived, 1)) is not None:
            self._set(self.derived, self.store.held[other].body)

    def _spaces(self) -> None:
        """The same record in other bytes."""
        if (key := self._pick(self.derived)) is not None:
            self.store._put(key, self.store.held[key].body.replace(b'":', b'": '))

    def _stray(self) -> None:
        """An entry under a key that its source does not define."""
        if (key := self._pick(self.derived)) is not None and "hour=" in key:
            hour = key.partition("hour=")[2][:2]
            moved = key.replace(f"hour={hour}", "hour=11")
            self.store._put(moved, self.store.held[key].body)
        elif key is not None:
            self.store._put(key.replace(".json", "0.json"), self.store.held[key].body)

    def _stray_pack(self) -> None:
        """A pack with right entries of another hour, which is no substitute of a reference."""
        if (key := self._pick(self.packs)) is not None:
            lines = self.store.held[key].body.replace(b"/hour=22/", b"/hour=21/")
            self._put_pack(key.replace("/hour=22/", "/hour=21/"), lines)

    def _moved_pack(self) -> None:
        """A pack in another hour, and its entries alone: no substitute of references is left."""
        packs = [key for key in self.packs if key.startswith(RAW_BLOBS_BY_TIME)]
        if (key := self._pick(packs)) is not None:
            body = self.store.held[key].body
            with suppress(InvalidRecord):  # it may be damaged already
                self._put_alone(ObjectKey(key), body)
            del self.store.held[key]
            hour = key.partition("/hour=")[2][:2].encode()
            moved = body.replace(b"/hour=" + hour + b"/", b"/hour=11/")
            self._put_pack(key.replace(f"/hour={hour.decode()}/", "/hour=11/"), moved)

    def _put_alone(self, key: ObjectKey, body: bytes) -> None:
        for place, entry in unpack(key, body):
            self.store._put(place, entry)

    def _other_source(self) -> None:
        keys = [key for key in self.derived if not key.startswith(ACCEPTED_BY_TIME)]
        if (source := self._pick(self.sources)) is not None:
            self._set(keys, encode_reference(ObjectKey(source)))

    def _nowhere(self) -> None:
        keys = [key for key in self.derived if not key.startswith(ACCEPTED_BY_TIME)]
        self._set(keys, encode_reference(ObjectKey(f"{ACCEPTED}agent=61/boot=62/none.json")))

    def _escape(self) -> None:
        keys = [key for key in self.derived if not key.startswith(ACCEPTED_BY_TIME)]
        self._set(keys, encode_reference(ObjectKey("../../x")))

    def _no_source(self) -> None:
        self.store.held.pop(self._pick(self.sources) or "", None)

    def _late_source(self) -> None:
        """A manifest with another time of acceptance."""
        if (key := self._pick(self.sources)) is not None and key.startswith(ACCEPTED):
            body = self.store.held[key].body
            self.store._put(key, body.replace(b'unix_ns":1', b'unix_ns":2', 1))

    def _junk_source(self) -> None:
        self._set(self.sources, b"{broken")

    def _foreign(self) -> None:
        for root in (*DERIVED, ACCEPTED, QUARANTINE):
            self.store._put(f"{root}foreign-{self.at}", b"{}")

    def _packed_wrong(self) -> None:
        """A pack whose name and hash are right, with other bytes in an entry."""
        if (key := self._pick(self.packs)) is not None:
            body = self.store.held[key].body
            self._put_pack(
                key, body.replace(b"gw-1", b"gw-2", 1).replace(b"boot=62", b"boot=63", 1)
            )

    def _packed_again(self) -> None:
        """A second pack with one of the entries."""
        if (key := self._pick(self.packs)) is not None:
            lines = self.store.held[key].body.splitlines(keepends=True)
            if lines:  # another damage may have emptied the pack
                self._put_pack(key, lines[self.at % len(lines)])

    def _packed_junk(self) -> None:
        if (key := self._pick(self.packs)) is not None:
            self._put_pack(key, b"{broken\n")

    def _alone_wrong(self) -> None:
        """A packed entry exists alone too, with other bytes."""
        for key in self.packs[self.at % 2 :]:
            lines = self.store.held[key].body.splitlines()
            if not lines or not lines[0].isascii():
                continue  # another damage has emptied or replaced the pack
            place = lines[0].rpartition(b'"key":"')[2].removesuffix(b'"}').decode()
            self.store._put(place, b"{broken" if self.at % 3 else encode_record(manifest(0)))

    def _bad_identity(self) -> None:
        record = structs.replace(manifest(0), seq_start=9, seq_end=1)
        self._set(
            [key for key in self.derived if key.startswith(ACCEPTED_BY_TIME)], encode_record(record)
        )

    def _put_pack(self, like: str, body: bytes) -> None:
        span = parse_pack_key(like)
        assert span is not None
        self.store._put(pack_key(like.rpartition("/")[0], span, digest_of(body)), body)


damages = st.lists(st.tuples(st.sampled_from(Damage.kinds), st.integers(0, 30)), max_size=4)
joins = st.none() | st.tuples(st.integers(0, 400), st.integers(1, 5), st.integers(0, 4))


def reported(found: Sequence[DerivedDifference]) -> Counter[tuple[str, str, str, str | None]]:
    return Counter((one.key, one.wrong, one.detail, one.pack) for one in found)


@settings(max_examples=examples(50), deadline=None)
@given(layouts, damages, joins)
def test_both_comparisons_report_the_same(
    given_layouts: list[Layout], planted: list[tuple[str, int]], bounds: tuple[int, int, int] | None
) -> None:
    """Also if everything is moved to the temporary file, and if every entry is suspected."""
    store = built(given_layouts)
    for kind, at in planted:
        Damage(store, at).do(kind)

    def new_join() -> EntryJoin:
        if bounds is None:
            return EntryJoin()
        return EntryJoin(memory_bytes_max=bounds[0], parts=bounds[1], suspects_max=bounds[2])

    async def run() -> None:
        naive = [one async for one in NaiveComparison(store, RequestLimit(4)).run()]
        found = [one async for one in IndexComparison(store, RequestLimit(4), new_join).run()]
        assert reported(found) == reported(naive)
        if not planted:
            assert not found

    asyncio.run(run())


def test_each_kind_of_damage_is_reported() -> None:
    """Each kind of planted damage is a difference in some store, so the property is not empty."""
    layout = [
        Layout(hour=0, packs=frozenset({0}), referenced=False, quarantined=False),
        Layout(hour=0, packs=frozenset({0}), referenced=True, quarantined=True),
        Layout(hour=1, packs=frozenset(), referenced=True, quarantined=False),
    ]

    async def count(store: SimStore) -> int:
        found = [one async for one in IndexComparison(store, RequestLimit(4)).run()]
        naive = [one async for one in NaiveComparison(store, RequestLimit(4)).run()]
        assert reported(found) == reported(naive)
        return len(found)

    harmless = {"packed again"}
    for kind in Damage.kinds:

        def differences(at: int, kind: str = kind) -> int:
            store = built(layout)
            Damage(store, at).do(kind)
            return asyncio.run(count(store))

        assert any(map(differences, range(12))) == (kind not in harmless), kind
