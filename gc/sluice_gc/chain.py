"""The chain of certificates in the store: its head, taking the next place, reading it whole."""

from dataclasses import dataclass
from typing import Final

from sluice_gc.certificate import (
    Certificate,
    certificate_key,
    chain_key,
    verify_certificate,
    verify_chain,
)
from sluice_gc.errors import CertificateInvalid
from sluice_gc.objects import Trusted
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import AUDIT, digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest, ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_known, create_once

_CHAIN: Final = f"{AUDIT}chain/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A verified certificate with its stored bytes and their sha256."""

    certificate: Certificate
    body: bytes
    sha256: Digest


async def read_head(store: ObjectStore, trusted: Trusted) -> Link | None:
    """Gives the newest certificate, checked by itself; None when there is none.

    Raises:
        CertificateInvalid: It was altered or is not signed by a trusted key.
        StoreError: No answer, or a refusal.
    """
    places = await _list_places(store)
    if not places:
        return None
    return await _read_link(store, chain_key(places[-1]), f"#{places[-1]}", trusted)


async def read_certificate(store: ObjectStore, audit_id: str, trusted: Trusted) -> Link:
    """Gives one certificate by its audit id, checked by itself.

    Raises:
        CertificateInvalid: It is missing, altered, not signed by a trusted key, or misplaced.
        StoreError: No answer, or a refusal.
    """
    link = await _read_link(store, certificate_key(audit_id), audit_id, trusted)
    if link.certificate.audit_id != audit_id:
        raise CertificateInvalid(audit_id, f"certificate {link.certificate.audit_id} stands here")
    return link


async def _read_link(store: ObjectStore, key: ObjectKey, place: str, trusted: Trusted) -> Link:
    read = await store.get(key)
    if not isinstance(read, Found):
        raise CertificateInvalid(place, f"missing: {key}")
    certificate = verify_certificate(place, read.body, trusted)
    return Link(certificate=certificate, body=read.body, sha256=digest_of(read.body))


async def take_place(
    store: ObjectStore, certificate: Certificate, body: bytes, backoff: Backoff
) -> bool:
    """Puts a certificate at its place in the chain, then under its audit's folder.

    The place in the chain decides: it is created once, so that two audits that end together do
    not fork the chain.

    Returns:
        Whether the place was taken by this certificate; False when another one has it.
    """
    place = chain_key(certificate.chain_index)
    if isinstance(await create_once(store, place, body, backoff), OtherBytes):
        return False
    await create_known(store, certificate_key(certificate.audit_id), body, backoff)
    return True


async def repair_copy(store: ObjectStore, link: Link, backoff: Backoff) -> None:
    """Writes the copy of the newest certificate again, which a killed audit may have left out.

    Raises:
        OutcomeUnknown: Nobody knows whether it landed; call again.
        StoreError: No answer, or a refusal.
    """
    await create_known(store, certificate_key(link.certificate.audit_id), link.body, backoff)


async def verify_store_chain(store: ObjectStore, trusted: Trusted) -> tuple[Certificate, ...]:
    """Checks every certificate, their order, and that both copies of each are the same.

    Raises:
        CertificateInvalid: Names the first that is missing, altered or not in its place.
        StoreError: No answer, or a refusal.
    """
    places = await _list_places(store)
    bodies = [
        await _read_body(store, chain_key(place))
        for place in range(places[-1] + 1 if places else 0)
    ]
    chain = verify_chain(bodies, trusted)
    for certificate, body in zip(chain, bodies, strict=True):
        copy = await _read_body(store, certificate_key(certificate.audit_id))
        if copy is None:
            raise CertificateInvalid(certificate.audit_id, "missing: its copy is gone")
        if copy != body:
            raise CertificateInvalid(certificate.audit_id, "altered: its two copies differ")
    return chain


async def verify_evidence(store: ObjectStore, certificate: Certificate) -> int:
    """Checks that every file of evidence stands as its certificate names it; gives how many.

    Raises:
        CertificateInvalid: One is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    for file in certificate.evidence:
        body = await _read_body(store, file.key)
        if body is None:
            raise CertificateInvalid(certificate.audit_id, f"evidence is missing: {file.key}")
        if digest_of(body) != file.sha256:
            raise CertificateInvalid(certificate.audit_id, f"evidence was altered: {file.key}")
    return len(certificate.evidence)


async def _read_body(store: ObjectStore, key: ObjectKey) -> bytes | None:
    read = await store.get(key)
    return read.body if isinstance(read, Found) else None


async def has_certificates(store: ObjectStore) -> bool:
    """Tells whether any audit of this store was certified.

    Raises:
        StoreError: No answer, or a refusal.
    """
    return bool(await _list_places(store))


async def _list_places(store: ObjectStore) -> list[int]:
    places: list[int] = []
    async for page in store.list(_CHAIN):
        for one in page.objects:
            name = one.key.removeprefix(_CHAIN).removesuffix(".json")
            if not name.isdecimal() or chain_key(int(name)) != one.key:
                raise InvalidRecord(one.key, "no place of the chain of certificates")
            places.append(int(name))
    return places
