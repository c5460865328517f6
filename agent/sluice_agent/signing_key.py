"""The agent's Ed25519 key: create it and read it from a file that only its owner can read."""

import base64
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key and the id under which gateways know it."""

    key_id: str
    key: Ed25519PrivateKey

    @property
    def public_base64(self) -> str:
        """The 32 bytes of the public key in base64."""
        return base64.b64encode(_raw_public(self.key)).decode()


def make_key(path: Path) -> SigningKey:
    """Create a key and write it to a new file with mode 0600.

    Raises:
        BadUsage: The file exists or cannot be written; nothing was changed.
    """
    key = Ed25519PrivateKey.generate()
    body = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise BadUsage(
            f"key file exists: choose another path or keep using this key, path=`{path}`"
        ) from error
    except OSError as error:
        raise BadUsage(f"cannot write key file: {error.strerror}, path=`{path}`") from error
    with os.fdopen(number, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return SigningKey(key_id=_key_id(key), key=key)


def read_key(path: Path) -> SigningKey:
    """Read a key file.

    Raises:
        BadUsage: It is missing, readable by others, or not an Ed25519 key.
    """
    try:
        body = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise BadUsage(
            f"cannot read key file: create one with `sluice agent init`, path=`{path}`"
        ) from error
    if mode & 0o077:
        raise BadUsage(f"key file is readable by others: run chmod 600 on it, path=`{path}`")
    try:
        key = load_pem_private_key(body, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadUsage(f"key file is not a private key in PEM, path=`{path}`") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadUsage(f"key is not Ed25519: create one with `sluice agent init`, path=`{path}`")
    return SigningKey(key_id=_key_id(key), key=key)


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


def _raw_public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _key_id(key: Ed25519PrivateKey) -> str:
    """Derive the id from the public key, so that the key file alone is sufficient."""
    return digest_of(_raw_public(key))[:16]
