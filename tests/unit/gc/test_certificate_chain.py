"""The newest certificate of a store: found without a list of a long chain, only at its place."""

import asyncio
from pathlib import Path

import pytest
from support.gc_store import VersionedStore
from support.gc_world import AUDITOR_KEY, TRUSTED, MovedClock, certificate

from sluice_gc.audit.auditor import link_after
from sluice_gc.audit.certificate import certificate_key, sign_certificate
from sluice_gc.audit.certificate_chain import (
    ChainLink,
    append_certificate,
    prepare_key_file,
    read_newest,
    verify_store_chain,
)
from sluice_gc.errors import CertificateInvalid
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUDIT_CHAIN, chain_key
from sluice_protocol.units import ObjectKey
from sluice_store.retry import Backoff


def store_with(length: int, *, placeholders: int = 0) -> VersionedStore:
    """Return a store with a chain; its first certificates may be placeholders."""
    store = VersionedStore(clock=MovedClock())
    before: bytes | None = None
    for index in range(length):
        body = b"{}"
        if index >= placeholders:
            one = certificate(index, before, f"A{index}")
            body = sign_certificate(one, AUDITOR_KEY)
            store.put(certificate_key(one.audit_id), body)
        store.put(chain_key(index), body)
        before = body
    store.requests.clear()
    return store


def newest(store: VersionedStore) -> ChainLink:
    link = asyncio.run(read_newest(store, TRUSTED))
    assert link is not None
    return link


def test_the_newest_of_a_long_chain_costs_two_pages() -> None:
    store = store_with(6000, placeholders=5999)
    assert newest(store).certificate.chain_index == 5999
    assert store.requests["list_page"] == 2


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_missing_certificate_is_neither_hidden_nor_replaced(lost: int) -> None:
    """The next certificate follows the last one, and the verification names the missing one."""
    store = store_with(4)
    store.remove_key(chain_key(lost))
    head = await read_newest(store, TRUSTED)
    assert head.certificate.chain_index == 3
    linked = link_after(certificate(0, None, "A4"), head)
    assert await append_certificate(
        store, linked, sign_certificate(linked, AUDITOR_KEY), Backoff.seeded_by(store.clock)
    )
    assert chain_key(4) in store.versions
    assert chain_key(lost) not in store.versions
    with pytest.raises(CertificateInvalid) as wrong:
        await verify_store_chain(store, TRUSTED)
    assert wrong.value.audit_id == f"#{lost}"


def test_a_certificate_that_was_copied_to_a_later_position_is_refused() -> None:
    """An earlier certificate as the newest one would release the evidence of later ones."""
    store = store_with(3)
    store.put(chain_key(3), store.versions[chain_key(1)][0].body)
    with pytest.raises(CertificateInvalid, match="reordered"):
        newest(store)


def test_a_last_key_that_is_not_a_position_is_refused() -> None:
    store = store_with(2)
    store.put(ObjectKey(f"{AUDIT_CHAIN}x.json"), b"{}")
    with pytest.raises(InvalidRecord, match="not a position"):
        newest(store)


def test_a_key_file_is_not_created_next_to_a_long_chain(tmp_path: Path) -> None:
    store = store_with(2001, placeholders=2001)
    with pytest.raises(BadUsage, match="copy it from the machine that audited before"):
        asyncio.run(prepare_key_file(store, tmp_path / "auditor.pem"))
    assert store.requests["list_page"] == 1
