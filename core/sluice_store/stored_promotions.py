"""Stored promotions: create one, and read all of them.

A kind has at most `PROMOTIONS_MAX` of them, so a listing is one request, and they are read without
a register. One that cannot be decoded stops nothing: without its column every answer is the same.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import PROMOTIONS
from sluice_protocol.manifests import encode_record
from sluice_protocol.promotions import (
    Promotion,
    decide_promotion,
    decode_promotion,
    promotion_key,
    taken,
)
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore, read_bodies
from sluice_store.retry import Backoff, OtherBytes, create_once

LISTED_MAX: Final = 10_000
"""Keys that are read; other programs may have created any number of objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPromotions:
    """The promotions of a store, by kind and column.

    Attributes:
        unreadable: What is wrong with each record that cannot be decoded.
        date_ns: The store's clock at the listing, Unix ns.
    """

    records: tuple[Promotion, ...] = ()
    unreadable: tuple[InvalidRecord, ...] = ()
    date_ns: int = 0
    etags: tuple[str, ...] = field(default=(), compare=False)


async def read_promotions(
    store: ObjectStore, known: StoredPromotions | None = None
) -> StoredPromotions:
    """Read every promotion; return `known` if the listing shows that nothing was added."""
    keys: list[ObjectKey] = []
    etags: list[str] = []
    date_ns = 0
    async for page in store.list(PROMOTIONS):
        date_ns = date_ns or page.date_ns
        keys += [one.key for one in page.objects]
        etags += [one.etag for one in page.objects]
        if len(keys) >= LISTED_MAX:
            break
    if known is not None and known.etags == tuple(etags):
        return known
    records: list[Promotion] = []
    unreadable: list[InvalidRecord] = []
    bodies = await read_bodies(store, keys[:LISTED_MAX])
    for key, body in zip(keys, bodies, strict=False):
        try:
            records += [] if body is None else [decode_promotion(key, body)]
        except InvalidRecord as error:
            unreadable.append(error)
    return StoredPromotions(
        records=tuple(records),
        unreadable=tuple(unreadable),
        date_ns=date_ns,
        etags=tuple(etags),
    )


async def submit_promotion(
    store: ObjectStore, wanted: Promotion, existing: StoredPromotions, backoff: Backoff
) -> Promotion:
    """Create a promotion, and return the record that exists now.

    The same decision a second time changes nothing and returns the first record.

    Raises:
        BadUsage: As `decide_promotion`; another operator may have taken the column meanwhile.
        OutcomeUnknown: It is unknown whether the record exists; repeat the command.
    """
    dated = msgspec.structs.replace(wanted, decided_at_unix_ns=existing.date_ns)
    decided = decide_promotion(dated, existing.records)
    if decided is not dated:
        return decided
    key = promotion_key(decided.kind, decided.column)
    outcome = await create_once(store, key, encode_record(decided), backoff)
    if not isinstance(outcome, OtherBytes):
        return decided
    first = decode_promotion(key, outcome.body)
    if first.meaning != decided.meaning:
        raise taken(first)
    return first
