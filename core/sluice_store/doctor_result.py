"""The result of the doctor: its stored form, with digest and optional signature, and its use."""

import base64
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sluice_protocol.clock import Clock
from sluice_protocol.errors import InvalidRecord, StoreError, StoreMisconfigured
from sluice_protocol.keys import DOCTOR
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.concurrent_requests import run_concurrently
from sluice_store.deletion import delete_current_version
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, create_known

RESULTS: Final = f"{DOCTOR}results/"
RESULTS_KEPT: Final = 16
"""Results that are kept. A reader lists them and then reads the newest, so more than one stays."""
_CONCURRENT_DELETES: Final = 8
_CONTEXT: Final = b"sluice.doctor.v1\0"


class Need(StrEnum):
    """What requires a promise."""

    ACCEPTANCE = "acceptance"
    """Without it no gateway starts."""
    DELETION = "deletion"
    """Without it garbage collection only plans."""
    COMFORT = "comfort"
    """Without it everything works, at the cost in the finding."""


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and whether the store keeps it.

    Attributes:
        probe: The name of the probe.
        promise: The promise.
        need: What requires it.
        kept: Whether the store kept it.
        seen: What the store did instead; empty when it kept the promise.
        cost: The consequence of the broken promise; empty when it was kept.
    """

    probe: str
    promise: str
    need: Need
    kept: bool
    seen: str = ""
    cost: str = ""


class DoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of the doctor.

    Attributes:
        result_id: ULID of the run.
        endpoints: The store URLs that took part in the races.
        started_at_unix_ns: The store's clock at the start.
        ended_at_unix_ns: The store's clock at the end.
        racers: Concurrent writers in a race.
        rounds: Races of each kind.
        findings: Every promise, in the order of the probes.
    """

    schema: Literal["sluice.doctor.v1"] = "sluice.doctor.v1"
    result_id: str
    endpoints: tuple[str, ...]
    started_at_unix_ns: int
    ended_at_unix_ns: int
    racers: int
    rounds: int
    findings: tuple[DoctorFinding, ...]

    def broken(self, need: Need) -> tuple[DoctorFinding, ...]:
        """Return the broken promises that this need requires."""
        return tuple(one for one in self.findings if one.need is need and not one.kept)

    @property
    def good(self) -> bool:
        """Whether gateways may accept through this store."""
        return not self.broken(Need.ACCEPTANCE)


class StoredDoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result in its stored form.

    Attributes:
        result: The canonical JSON of the result, as text, so that its bytes are kept.
        sha256: Digest of that text, which detects accidental changes.
        key_id: The operator's key, or None when none was given.
        signature: Ed25519 over `sluice.doctor.v1`, NUL and the text, base64, or None.
    """

    schema: Literal["sluice.doctor_stored.v1"] = "sluice.doctor_stored.v1"
    result: str
    sha256: str
    key_id: str | None = None
    signature: str | None = None


def seal_result(
    result: DoctorResult, *, key: Ed25519PrivateKey | None = None, key_id: str | None = None
) -> bytes:
    """Encode a result into its stored form."""
    text = encode_record(result)
    signature = base64.b64encode(key.sign(_CONTEXT + text)).decode() if key else None
    return encode_record(
        StoredDoctorResult(
            result=text.decode(),
            sha256=hashlib.sha256(text).hexdigest(),
            key_id=key_id if key else None,
            signature=signature,
        )
    )


def open_result(
    key: str, body: bytes, trusted: Mapping[str, Ed25519PublicKey] | None = None
) -> DoctorResult:
    """Decode and check a stored result.

    Args:
        key: Its key, for messages.
        body: The stored bytes.
        trusted: Operators' keys by id; when given, the result must be signed by one of them.

    Raises:
        InvalidRecord: The record is damaged, or not signed by a trusted key.
    """
    stored = decode_record(key, body, StoredDoctorResult)
    text = stored.result.encode()
    if hashlib.sha256(text).hexdigest() != stored.sha256:
        raise InvalidRecord(key, "the doctor's result does not match its digest")
    if trusted is not None:
        _check_signature(key, stored, text, trusted)
    return decode_record(key, text, DoctorResult)


def _check_signature(
    key: str, stored: StoredDoctorResult, text: bytes, trusted: Mapping[str, Ed25519PublicKey]
) -> None:
    public = trusted.get(stored.key_id or "")
    if public is None or stored.signature is None:
        raise InvalidRecord(key, "the doctor's result is not signed by a trusted operator")
    try:
        public.verify(base64.b64decode(stored.signature), _CONTEXT + text)
    except (InvalidSignature, ValueError) as error:
        raise InvalidRecord(key, "the signature of the doctor's result is invalid") from error


async def write_result(
    store: ObjectStore, result: DoctorResult, sealed: bytes, clock: Clock
) -> ObjectKey:
    """Write a sealed result under a key that sorts by time, and remove all but the newest ones.

    A failed removal is not an error: the next result removes what is left.

    Raises:
        OutcomeUnknown: The bounds on retries are spent; the same call may be repeated.
        StoreError: The store refused the request.
    """
    key = ObjectKey(f"{RESULTS}{result.ended_at_unix_ns:020d}-{result.result_id}.json")
    await create_known(store, key, sealed, Backoff.seeded_by(clock))  # the key has a new id
    with suppress(StoreError):
        await _remove_older(store)
    return key


async def _remove_older(store: ObjectStore) -> None:
    keys = [one.key async for page in store.list(RESULTS) for one in page.objects]
    remove = partial(delete_current_version, store)
    await run_concurrently(keys[:-RESULTS_KEPT], remove, concurrency=_CONCURRENT_DELETES)


async def read_doctor(
    store: ObjectStore, trusted: Mapping[str, Ed25519PublicKey] | None = None
) -> DoctorResult | None:
    """Return the newest result in the store, or None when the doctor never ran.

    Raises:
        InvalidRecord: The newest result is damaged, or not signed by a trusted key.
        StoreError: The store could not be read.
    """
    newest: ObjectKey | None = None
    async for page in store.list(RESULTS):
        newest = page.objects[-1].key if page.objects else newest
    read = await store.get(newest) if newest else None
    return open_result(read.info.key, read.body, trusted) if isinstance(read, Found) else None


async def require_doctor(
    store: ObjectStore, trusted: Mapping[str, Ed25519PublicKey] | None = None
) -> DoctorResult:
    """Return the newest result, or raise unless gateways may accept through this store.

    Raises:
        StoreMisconfigured: The doctor never ran, or the store breaks a promise that acceptance
            needs.
        InvalidRecord: The newest result is damaged, or not signed by a trusted key.
        StoreError: The store could not be read.
    """
    result = await read_doctor(store, trusted)
    if result is None:
        raise StoreMisconfigured(
            "doctor", RESULTS, "no doctor's result: run `sluice doctor --store URL`"
        )
    broken = result.broken(Need.ACCEPTANCE)
    if broken:
        promises = "; ".join(f"{one.promise} (else {one.cost})" for one in broken)
        raise StoreMisconfigured(
            "doctor",
            RESULTS,
            (f"the store breaks promises that acceptance needs, use another store: {promises}"),
        )
    return result
