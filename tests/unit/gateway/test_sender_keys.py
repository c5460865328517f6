"""Keys of senders verify exactly what Ed25519 allows, and agree with a second implementation."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from sluice_gateway.uploads.principals import SenderKey

ORDER = 2**252 + 27742317777372353535851937790883648493
"""The order of the base point, RFC 8032 section 5.1."""
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]
"""RFC 8032 section 7.1, tests 1 to 3: public key, message, signature."""


def verifies(key: SenderKey | Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    if isinstance(key, SenderKey):
        return key.has_signed(data, signature)
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


@pytest.mark.parametrize(("public", "data", "signature"), VECTORS)
def test_the_vectors_of_the_standard(public: str, data: str, signature: str) -> None:
    key = SenderKey(bytes.fromhex(public))
    assert verifies(key, bytes.fromhex(signature), bytes.fromhex(data))
    assert not verifies(key, bytes.fromhex(signature), bytes.fromhex(data) + b"\0")


@given(
    seed=st.binary(min_size=32, max_size=32),
    data=st.binary(max_size=200),
    part=st.sampled_from(["signature", "data", "key", "none"]),
    bit=st.integers(min_value=0),
)
def test_both_implementations_agree(seed: bytes, data: bytes, part: str, bit: int) -> None:
    """A changed bit anywhere is refused by both; an unchanged request is accepted by both."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    parts = {
        "signature": private.sign(data),
        "data": data,
        "key": private.public_key().public_bytes_raw(),
    }
    if part != "none" and parts[part]:
        changed = bytearray(parts[part])
        place = bit % (8 * len(changed))
        changed[place // 8] ^= 1 << place % 8
        parts[part] = bytes(changed)
    intact = part == "none" or (part == "data" and not data)
    ours = verifies(SenderKey(parts["key"]), parts["signature"], parts["data"])
    theirs = Ed25519PublicKey.from_public_bytes(parts["key"])
    assert ours == verifies(theirs, parts["signature"], parts["data"]) == intact


@given(st.binary(max_size=130).filter(lambda text: len(text) != 64))
def test_a_signature_of_another_length_is_refused(signature: bytes) -> None:
    key = SenderKey(bytes.fromhex(VECTORS[0][0]))
    assert not verifies(key, signature, b"")


def test_a_signature_with_a_larger_scalar_is_refused() -> None:
    """S and S plus the order satisfy the same equation; only the smaller one is a signature."""
    public, data, signature = (bytes.fromhex(text) for text in VECTORS[1])
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    changed = signature[:32] + scalar.to_bytes(32, "little")
    assert not verifies(SenderKey(public), changed, data)


def test_a_key_of_small_order_signs_nothing() -> None:
    """With the neutral element as key, one signature would fit every text."""
    neutral = (1).to_bytes(32, "little")
    signature = neutral + bytes(32)
    assert verifies(Ed25519PublicKey.from_public_bytes(neutral), signature, b"any text")
    assert not verifies(SenderKey(neutral), signature, b"any text")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32"):
        SenderKey(bytes(size))
