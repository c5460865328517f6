"""The public keys of senders, which verify signatures of requests with libsodium (ADR 12)."""

from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey


class SenderKey:
    """An Ed25519 public key."""

    __slots__ = ("_key",)

    def __init__(self, raw: bytes) -> None:
        """Take the 32 bytes of the key.

        Raises:
            ValueError: They are not 32 bytes.
        """
        self._key = VerifyKey(raw)

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether the key made a signature; false for a degenerate key or signature."""
        try:
            self._key.verify(data, signature)
        except CryptoError:
            return False
        return True
