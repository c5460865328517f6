"""Complete, signed certificates for tests."""

from itertools import pairwise

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from sluice_gc.audit.certificate import AUDITED_PREFIXES, AuditCounts, Certificate, merkle_root_of
from sluice_gc.key_ranges import KeyRange, cover_prefix
from sluice_gc.signing_keys import key_id_of
from sluice_protocol.keys import digest_of

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
RIVAL = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
TRUSTED = {key_id_of(KEY.public_key()): KEY.public_key()}


def key_range(start: str = "", end: str | None = None, pages: int = 1) -> KeyRange:
    return KeyRange(
        start_after=start,
        end_at=end,
        pages=pages,
        objects=3,
        root=digest_of(b"range"),
        first_date_unix_ns=1,
        last_date_unix_ns=2,
    )


def many_ranges(count: int) -> list[KeyRange]:
    """Return contiguous ranges, each with another root."""
    bounds = ["", *(f"k{number:05d}" for number in range(1, count)), None]
    return [
        replace(
            key_range(start or "", end), root=digest_of(b"%d" % number), last_date_unix_ns=number
        )
        for number, (start, end) in enumerate(pairwise(bounds))
    ]


def certificate(index: int = 0, before: bytes | None = None, audit_id: str = "A0") -> Certificate:
    coverage = tuple(cover_prefix(prefix, [key_range()]) for prefix in AUDITED_PREFIXES)
    return Certificate(
        authority_id="authority",
        retry_horizon_s=300,
        audit_id=audit_id,
        chain_index=index,
        previous_audit_id=f"A{index - 1}" if index else "",
        previous_sha256=digest_of(before) if before else "",
        started_at_unix_ns=1,
        finished_at_unix_ns=2,
        clock_skew_ns=0,
        deep=0.0,
        shards=1,
        coverage=coverage,
        merkle_root=merkle_root_of(coverage),
        counts=AuditCounts(accepted=1),
        evidence=(),
    )
