"""Frames from another encoder (cbor2), so that any rule can be broken on purpose."""

import struct
from collections.abc import Mapping

import cbor2
import zstandard

Item = object
U8, U32, I32, I64, F64 = 64, 70, 78, 79, 86
_CODES = {U8: "B", U32: "I", I32: "i", I64: "q", F64: "d"}


def array(tag: int, *values: float) -> cbor2.CBORTag:
    return cbor2.CBORTag(tag, struct.pack(f"<{len(values)}{_CODES[tag]}", *values))


def envelope(**changes: Item) -> dict[str, Item]:
    """Return a valid envelope of two logs; a change to None removes the key."""
    good: dict[str, Item] = {
        "wire_version": 1,
        "agent_id": "a",
        "boot_id": "b",
        "seq_start": 5,
        "seq_end": 6,
        "count": 2,
        "kind": "logs",
        "min_ts": 10,
        "max_ts": 20,
        "resource": {},
    }
    return _changed(good, changes)


def attributes() -> dict[str, Item]:
    """Return attribute columns for two records: two pairs and none."""
    return {
        "attr_names": ["k", "l"],
        "attr_off": array(I32, 0, 2, 2),
        "attr_key": array(U32, 0, 1),
        "attr_val_off": array(I32, 0, 1, 2),
        "attr_val": b"vw",
    }


def logs(**changes: Item) -> dict[str, Item]:
    good = {
        "ts": array(I64, 10, 20),
        "body_off": array(I32, 0, 2, 4),
        "body": "äö".encode(),
        "severity": array(U8, 0, 24),
        **attributes(),
    }
    return _changed(good, changes)


def metrics(**changes: Item) -> dict[str, Item]:
    good = {
        "ts": array(I64, 10, 20),
        "names": ["m", "n"],
        "name": array(U32, 1, 0),
        "value": array(F64, 0.5, 2),
        "type": array(U8, 0, 2),
    }
    return _changed(good, changes)


def entries(**changes: Item) -> dict[str, Item]:
    good = {
        "key_off": array(I32, 0, 1, 1),
        "key": b"\xff",
        "val_off": array(I32, 0, 0, 2),
        "val": b"\x80\x00",
        "ts": array(I64, 10, 20),
    }
    return _changed(good, changes)


def _changed(good: dict[str, Item], changes: Mapping[str, Item]) -> dict[str, Item]:
    return {key: value for key, value in (good | dict(changes)).items() if value is not None}


def canonical(item: Item) -> bytes:
    return cbor2.dumps(item, canonical=True)


def frame(
    head: bytes | Mapping[str, Item],
    payload: bytes | Mapping[str, Item],
    *,
    compress: bool = False,
    stored: bytes | None = None,
    **header: int | bytes,
) -> bytes:
    """Return a frame of these parts; `header` overrides fields, `stored` the payload as stored."""
    head_bytes = head if isinstance(head, bytes) else canonical(head)
    raw = payload if isinstance(payload, bytes) else canonical(payload)
    if stored is None:
        stored = zstandard.ZstdCompressor().compress(raw) if compress else raw
    fields: dict[str, object] = {
        "magic": b"LMB1",
        "frame_version": 1,
        "flags": int(compress),
        "envelope_bytes": len(head_bytes),
        "payload_bytes": len(stored),
        "payload_raw_bytes": len(raw),
        "reserved": 0,
    } | header
    return struct.pack("<4sHHIIII", *fields.values()) + head_bytes + stored
