"""The agent's Ed25519 key: create it and read it from a file that only its owner can read."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nacl.signing

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import digest_of

_PEM_BEGIN: Final = b"-----BEGIN PRIVATE KEY-----\n"
_PEM_END: Final = b"\n-----END PRIVATE KEY-----\n"
_ED25519_PKCS8: Final = bytes.fromhex("302e020100300506032b657004220420")
"""What is before the 32 bytes of a private key without attributes (RFC 8410 section 7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key, which signs with libsodium (ADR 12), and its id in the gateways' files."""

    key_id: str
    key: nacl.signing.SigningKey

    @property
    def public_base64(self) -> str:
        """The 32 bytes of the public key in base64."""
        return base64.b64encode(bytes(self.key.verify_key)).decode()

    def sign(self, data: bytes, /) -> bytes:
        """Return the 64 bytes of the signature."""
        return self.key.sign(data).signature


def make_key(path: Path) -> SigningKey:
    """Create a key and write it to a new file with mode 0600.

    Raises:
        BadUsage: The file exists or cannot be written.
    """
    key = nacl.signing.SigningKey.generate()
    body = _PEM_BEGIN + base64.b64encode(_ED25519_PKCS8 + bytes(key)) + _PEM_END
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise BadUsage(
            f"key file exists: choose another path or keep using this key, path=`{path}`"
        ) from error
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with os.fdopen(number, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()  # part of a key would be refused by the next start
        raise _not_written(path, error) from error
    return SigningKey(key_id=_key_id(key), key=key)


def _not_written(path: Path, error: OSError) -> BadUsage:
    return BadUsage(f"cannot write key file: {error.strerror}, path=`{path}`")


def read_key(path: Path) -> SigningKey:
    """Read a key file.

    Raises:
        BadUsage: It is missing, readable by others, or not an Ed25519 key.
    """
    try:
        body = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise BadUsage(
            f"no key file: create one with `sluice agent init`, path=`{path}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot read key file: {error.strerror}; run as its owner, path=`{path}`"
        ) from error
    if mode & 0o077:
        raise BadUsage(f"key file is readable by others: run chmod 600 on it, path=`{path}`")
    key = _usual_key(body) or _any_key(body, path)
    return SigningKey(key_id=_key_id(key), key=key)


def _usual_key(body: bytes) -> nacl.signing.SigningKey | None:
    """Return the key of a file in the form that `make_key` writes, or None.

    The library that reads other keys and forms would cost each agent 8 MiB of memory.
    """
    if not (body.startswith(_PEM_BEGIN) and body.endswith(_PEM_END)):
        return None
    try:
        pkcs8 = base64.b64decode(body[len(_PEM_BEGIN) : -len(_PEM_END)], validate=True)
        if not pkcs8.startswith(_ED25519_PKCS8):
            return None
        return nacl.signing.SigningKey(pkcs8.removeprefix(_ED25519_PKCS8))
    except ValueError:
        return None


def _any_key(body: bytes, path: Path) -> nacl.signing.SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - rarely needed
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(body, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadUsage(f"key file is not a private key in PEM, path=`{path}`") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadUsage(f"key is not Ed25519: create one with `sluice agent init`, path=`{path}`")
    return nacl.signing.SigningKey(key.private_bytes_raw())


def principal_entry(name: str, agent_id: str, key: SigningKey) -> str:
    """Return the entry for the gateways' principals file, as TOML."""
    return (
        "[[principals]]\n"
        f"name = {_toml(name)}\n"
        'roles = ["agent"]\n'
        f"agents = [{_toml(agent_id)}]\n"
        f'keys = [{{ id = "{key.key_id}", ed25519 = "{key.public_base64}" }}]\n'
    )


def _toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _key_id(key: nacl.signing.SigningKey) -> str:
    """Derive the id from the public key, so that the key file alone is sufficient."""
    return digest_of(bytes(key.verify_key))[:16]
