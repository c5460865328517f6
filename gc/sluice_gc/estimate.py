"""What a full audit costs: requests, price and time, computed and not guessed from a run."""

import math
from typing import Final

import msgspec

LIST_PAGE_OBJECTS: Final = 1000
LIST_USD_PER_1000: Final = 0.005
"""S3 Standard, us-east-1, November 2026: PUT, COPY, POST, LIST."""
GET_USD_PER_1000: Final = 0.0004
EVIDENCE_BYTES_PER_BATCH: Final = 210
"""Parquet bytes that an audit writes for a batch: 182 measured over 2·10^4, and S3's longer ids."""
LIST_PAGE_S: Final = 0.15
"""One LIST page of 1 000 keys takes about this long on S3; streams run at the same time."""
STREAMS_PER_CORE: Final = 1


class AuditPrice(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one audit.

    Attributes:
        list_requests: Pages of the five prefixes.
        get_requests: Bodies of manifests, each read once in its life.
        usd: What S3 asks for the requests.
        hours: How long the listing takes on that many cores.
        evidence_gib: What the audit writes.
    """

    list_requests: int
    get_requests: int
    usd: float
    hours: float
    evidence_gib: float


class AuditEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What to expect of a first audit and of each one after it.

    Attributes:
        batches: Accepted batches; each has a manifest, a reference and a blob.
        cores: Executor cores.
        first: Every body is read.
        following: Only bodies of batches that came since are read.
        following_new_share: How many of the batches are new, as a share.
    """

    batches: int
    cores: int
    first: AuditPrice
    following: AuditPrice
    following_new_share: float


def estimate_audit(batches: int, cores: int, new_share: float = 0.01) -> AuditEstimate:
    """Gives the price of audits of a store with `batches` accepted batches.

    Args:
        batches: Accepted batches; quarantined ones and orphans are few beside them.
        cores: Executor cores, each with one LIST stream at a time.
        new_share: Share of batches that came since the audit before.
    """
    return AuditEstimate(
        batches=batches,
        cores=cores,
        first=_price(batches, cores, bodies=batches),
        following=_price(batches, cores, bodies=math.ceil(batches * new_share)),
        following_new_share=new_share,
    )


def _price(batches: int, cores: int, *, bodies: int) -> AuditPrice:
    lists = 3 * math.ceil(batches / LIST_PAGE_OBJECTS) + 2
    usd = lists * LIST_USD_PER_1000 / 1000 + bodies * GET_USD_PER_1000 / 1000
    return AuditPrice(
        list_requests=lists,
        get_requests=bodies,
        usd=round(usd, 2),
        hours=round(lists * LIST_PAGE_S / (cores * STREAMS_PER_CORE) / 3600, 2),
        evidence_gib=round(batches * EVIDENCE_BYTES_PER_BATCH / 2**30, 1),
    )
