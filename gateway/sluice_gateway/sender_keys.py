"""The public keys of senders, which verify signatures of requests with libsodium (ADR 0169)."""

from cryptography.exceptions import InvalidSignature
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey


class SenderKey:
    """An Ed25519 public key with the interface of `Ed25519PublicKey.verify`."""

    __slots__ = ("_key",)

    def __init__(self, raw: bytes) -> None:
        """Take the 32 bytes of the key.

        Raises:
            ValueError: They are not 32 bytes.
        """
        self._key = VerifyKey(raw)

    def verify(self, signature: bytes, data: bytes) -> None:
        """Verify a signature of any length.

        Raises:
            InvalidSignature: The key did not sign the data, or the key or signature is degenerate.
        """
        try:
            self._key.verify(data, signature)
        except CryptoError as error:
            raise InvalidSignature from error
