"""The auditor's Ed25519 keys: load, create, trust; sign and verify records."""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import encode_record

TrustedKeys = Mapping[str, Ed25519PublicKey]
"""Public keys by `key_id_of` whose certificates and plans are trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorKeys:
    """The auditor's private key and the trusted public keys."""

    private: Ed25519PrivateKey
    trusted: TrustedKeys


def load_keys(key_file: Path, trusted_keys: Iterable[str] = ()) -> AuditorKeys:
    """Load the auditor's private key; its public half and `trusted_keys` are trusted.

    `key_file` is PEM, PKCS 8, Ed25519, without a password; `trusted_keys` are raw public keys in
    base64.
    """
    try:
        private = load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as error:
        raise BadUsage(
            f"cannot read the auditor's key, key_file=`{key_file}`;"
            ' create it with "sluice audit key"'
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadUsage(f"not a PEM key without a password, key_file=`{key_file}`") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadUsage(f"not an Ed25519 key, key_file=`{key_file}`")
    public = [private.public_key(), *(parse_public_key(text) for text in trusted_keys)]
    return AuditorKeys(private=private, trusted={key_id_of(one): one for one in public})


def load_trusted(key_file: Path, trusted_keys: Iterable[str] = ()) -> TrustedKeys:
    """Return the trusted keys; the key file is read only if none are named.

    The file contains the auditor's private key, or public keys as base64, one a line.
    """
    texts = list(trusted_keys)
    if not texts:
        if not key_file.exists():
            raise BadUsage(
                f"no key to check signatures with, key_file=`{key_file}`; write the public key that"
                ' "sluice audit key" prints where audits run to a file, and name it'
            )
        texts = _public_lines(key_file)
    if not texts:
        return load_keys(key_file).trusted
    return {key_id_of(one): one for one in map(parse_public_key, texts)}


def _public_lines(key_file: Path) -> list[str]:
    """Return the public keys of a file, one a line; none if it is not such a file."""
    try:
        text = key_file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return []  # the error about a private key names the file
    return [] if "-----BEGIN" in text else text.split()


def make_key_file(key_file: Path) -> Ed25519PublicKey:
    """Create the auditor's private key, readable only by this user; return its public half."""
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(pem)
    except OSError as error:
        raise BadUsage(f"cannot create the key: {error.strerror}, key_file=`{key_file}`") from error
    return private.public_key()


def parse_public_key(text: str) -> Ed25519PublicKey:
    """Decode a raw public key from base64."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise BadUsage(
            f"not a public key: expected base64 of 32 raw bytes, key=`{text}`"
        ) from error


def key_id_of(public: Ed25519PublicKey) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of the raw public key."""
    return digest_of(public.public_bytes_raw())[:16]


def public_texts(trusted: TrustedKeys) -> tuple[str, ...]:
    """Return the keys as base64, for tasks of other processes."""
    return tuple(base64.b64encode(one.public_bytes_raw()).decode() for one in trusted.values())


def trusted_of(texts: Iterable[str]) -> TrustedKeys:
    """Return the keys of `public_texts`."""
    return {key_id_of(one): one for one in map(parse_public_key, texts)}


class KeySignature(NamedTuple):
    """A signature in base64, and the id of its key."""

    key_id: str
    signature: str


class SignedRecord(Protocol):
    """A record that contains another one and its signature."""

    @property
    def key_id(self) -> str:
        """The key that signed it."""
        ...

    @property
    def signature(self) -> str:
        """The signature in base64."""
        ...


def sign_record(key: Ed25519PrivateKey, domain: bytes, record: msgspec.Struct) -> KeySignature:
    """Return the signature over a domain line and the canonical bytes of a record."""
    signature = base64.b64encode(key.sign(domain + encode_record(record))).decode()
    return KeySignature(key_id_of(key.public_key()), signature)


def is_signed(
    signed: SignedRecord, trusted: TrustedKeys, domain: bytes, record: msgspec.Struct
) -> bool:
    """Return True if a trusted key made the signature of the contained `record`."""
    public = trusted.get(signed.key_id)
    if public is None:
        return False
    try:
        signature = base64.b64decode(signed.signature, validate=True)
        public.verify(signature, domain + encode_record(record))
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True
