"""The attribute with the verified sha256 of a file: its bytes, and which values are ignored."""

import asyncio
import os
from pathlib import Path

import pytest

from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.local import open_local_store
from sluice_store.local.layout import (
    ATTRIBUTE,
    decode_verified,
    encode_verified,
    read_verified,
    write_verified,
)

STAMP = 1_800_000_000_123_456_789
DIGEST = digest_of(b"body")
INODE_ROOM = 256 - 128 - 32 - 4 - 4 - 16 - 16
"""Bytes for the value in an inode of ext4: without its fields, their extension, the header and end
of the attributes, and the entry with its name."""


def test_a_value_is_read_for_its_timestamp_only() -> None:
    value = encode_verified(STAMP, DIGEST)
    assert decode_verified(value, STAMP) == DIGEST
    assert decode_verified(value, STAMP + 1) is None


def test_a_value_fits_into_an_inode() -> None:
    assert encode_verified(STAMP, DIGEST) == STAMP.to_bytes(8, "big") + bytes.fromhex(DIGEST)
    assert len(encode_verified(STAMP, DIGEST)) <= INODE_ROOM


@pytest.mark.parametrize(
    "value",
    [
        b"",
        encode_verified(STAMP, DIGEST)[:-1],
        encode_verified(STAMP, DIGEST) + b"\0",
        f"{STAMP}:{DIGEST}".encode(),
    ],
)
def test_a_damaged_value_is_ignored(value: bytes) -> None:
    assert decode_verified(value, STAMP) is None


def test_the_attribute_is_kept_with_the_file(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        assert read_verified(fd, STAMP) is None
        write_verified(fd, STAMP, DIGEST)
        assert read_verified(fd, STAMP) == DIGEST
    finally:
        os.close(fd)


def test_an_attribute_of_another_state_is_no_checksum(tmp_path: Path) -> None:
    key = ObjectKey("a/key")

    async def head(value: bytes | None = None) -> ObjectInfo:
        async with open_local_store(tmp_path) as store:
            if value is None:
                await store.create(key, b"body")
            else:
                os.setxattr(tmp_path / key, ATTRIBUTE, value)
            found = await store.head(key)
            assert isinstance(found, ObjectInfo)
            return found

    new = asyncio.run(head())
    assert new.sha256 == DIGEST
    later = encode_verified(new.last_modified_ns + 1, DIGEST)
    assert asyncio.run(head(later)).sha256 is None
