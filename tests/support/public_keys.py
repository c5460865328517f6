"""Public keys of the second implementation of Ed25519, as `verify_signature` takes them."""

from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True)
class OpensslKey:
    """A public key that verifies with OpenSSL."""

    key: Ed25519PublicKey

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        try:
            self.key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


def public_half(key: Ed25519PrivateKey) -> OpensslKey:
    """Return the public key of a private one."""
    return OpensslKey(key.public_key())
