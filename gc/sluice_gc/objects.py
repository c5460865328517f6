"""Reads and writes of audit and GC's own objects: each is written once and checked when read."""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sluice_gc.certificate import EvidenceFile, key_id_of
from sluice_gc.errors import GcRefused, Refusal
from sluice_gc.evidence import decode_table, encode_table
from sluice_protocol.errors import BadUsage, InvariantViolated
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff, OtherBytes, create_once


async def put_table(
    store: ObjectStore, folder: str, kind: str, place: str, table: pa.Table, *, backoff: Backoff
) -> EvidenceFile:
    """Writes a table as Parquet under a key that its own bytes name, so that a repeat is free.

    Raises:
        OutcomeUnknown: Nobody knows whether the write landed; call again.
        StoreError: The store refused.
    """
    body = encode_table(table)
    sha256 = digest_of(body)
    key = ObjectKey(f"{folder}{kind}/{place}-{sha256[:16]}.parquet")
    if isinstance(await create_once(store, key, body, backoff), OtherBytes):
        raise InvariantViolated(f"other bytes stand under a content-addressed key, key=`{key}`")
    return EvidenceFile(
        kind=kind, place=place, key=key, sha256=sha256, size_bytes=len(body), rows=len(table)
    )


async def read_table(store: ObjectStore, file: EvidenceFile, schema: pa.Schema) -> pa.Table:
    """Reads evidence and checks it against the record that names it.

    Raises:
        GcRefused: It is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(file.key)
    if not isinstance(read, Found):
        raise GcRefused(Refusal.EVIDENCE_CHANGED, f"evidence is missing: {file.key}")
    if digest_of(read.body) != file.sha256:
        raise GcRefused(Refusal.EVIDENCE_CHANGED, f"evidence was altered: {file.key}")
    try:
        return decode_table(read.body, schema)
    except (ValueError, pa.ArrowException) as error:
        raise GcRefused(Refusal.EVIDENCE_CHANGED, f"{error}: {file.key}") from error


async def read_tables(
    store: ObjectStore, files: Iterable[EvidenceFile], schema: pa.Schema
) -> pa.Table:
    """Reads several files of evidence as one table.

    Raises:
        GcRefused: One is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    tables = [await read_table(store, one, schema) for one in files]
    return pa.concat_tables([schema.empty_table(), *tables])


Trusted = Mapping[str, Ed25519PublicKey]
"""Public keys by `key_id_of`: whose certificates and plans count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The auditor's key and whom it trusts."""

    private: Ed25519PrivateKey
    trusted: Trusted


def load_keys(key_file: Path, trusted_keys: Iterable[str] = ()) -> Keys:
    """Reads the auditor's private key; its public half and `trusted_keys` are trusted.

    Args:
        key_file: PEM, PKCS 8, Ed25519, without a password.
        trusted_keys: Base64 of raw public keys.

    Raises:
        BadUsage: There is no such file, or it or a trusted key is of another form.
    """
    try:
        private = load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as error:
        raise BadUsage(
            f"no auditor's key: make one with `sluice audit key`, key_file=`{key_file}`"
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadUsage(f"not a PEM key without a password, key_file=`{key_file}`") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadUsage(f"not an Ed25519 key, key_file=`{key_file}`")
    public = [private.public_key(), *(parse_public_key(text) for text in trusted_keys)]
    return Keys(private=private, trusted={key_id_of(one): one for one in public})


def load_trusted(key_file: Path, trusted_keys: Iterable[str] = ()) -> Trusted:
    """Gives the keys to trust; the auditor's own file is read only when none are named.

    Raises:
        BadUsage: None are named and there is no such file, or a key is of another form.
    """
    named = [parse_public_key(text) for text in trusted_keys]
    if named:
        return {key_id_of(one): one for one in named}
    return load_keys(key_file).trusted


def make_key_file(key_file: Path) -> Ed25519PublicKey:
    """Makes an auditor's private key, readable by this user alone; gives its public half.

    Raises:
        BadUsage: The file stands there already, or cannot be written.
    """
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(pem)
    except OSError as error:
        raise BadUsage(f"cannot make the key: {error.strerror}, key_file=`{key_file}`") from error
    return private.public_key()


def parse_public_key(text: str) -> Ed25519PublicKey:
    """Reads base64 of a raw public key.

    Raises:
        BadUsage: It is of another form.
    """
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise BadUsage(f"not base64 of 32 raw public key bytes, key=`{text}`") from error
