"""The envelope of a frame: the identity, kind, time span and resource of its batch."""

from collections.abc import Callable
from typing import Final, cast, get_args

import msgspec

from sluice_protocol.cbor import (
    CborReader,
    encode_integer,
    encode_map_head,
    encode_text,
    key_order,
    shown,
)
from sluice_protocol.errors import InvalidFrame, UnsupportedVersion
from sluice_protocol.identity import Identity
from sluice_protocol.manifests import Kind
from sluice_protocol.short_cbor import ShortForm, read_short_map, short_keys

WIRE_VERSION: Final = 1
RESOURCE_ENTRIES_MAX: Final = 64
_KINDS: Final = get_args(Kind)
_I64: Final = range(-(2**63), 2**63)

ENCODER_KEY: Final = "sluice.encoder"
"""The pair of a resource with the version of what encoded a frame; it belongs to no user."""

Resource = tuple[tuple[str, str], ...]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a batch, in front of its columns.

    Attributes:
        agent_id: The agent that sent it.
        boot_id: The boot of that agent.
        seq_start: First sequence number.
        seq_end: Last sequence number, inclusive.
        count: Number of records.
        kind: Kind of the records.
        min_ts_ns: Smallest `ts`, Unix ns; None when entries have no `ts`.
        max_ts_ns: Largest `ts`, Unix ns; None when entries have no `ts`.
        resource: Pairs of the resource, in the order of the frame.
        wire_version: Version of the envelope.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    count: int
    kind: Kind
    min_ts_ns: int | None
    max_ts_ns: int | None
    resource: Resource = ()
    wire_version: int = WIRE_VERSION

    @property
    def identity(self) -> Identity:
        """The identity that the frame claims."""
        return Identity.of(self)

    @property
    def shown_resource(self) -> Resource:
        """The resource as its sender stated it, which consumers see."""
        return tuple(pair for pair in self.resource if pair[0] != ENCODER_KEY)


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the canonical encoding of an envelope, with the resource sorted.

    Raises:
        InvalidFrame: The resource has too many entries, a key twice, or text that is not UTF-8.
    """
    parts = {
        "wire_version": encode_integer(envelope.wire_version),
        "agent_id": encode_text(envelope.agent_id),
        "boot_id": encode_text(envelope.boot_id),
        "seq_start": encode_integer(envelope.seq_start),
        "seq_end": encode_integer(envelope.seq_end),
        "count": encode_integer(envelope.count),
        "kind": encode_text(envelope.kind),
        "resource": _encode_resource(envelope.resource),
    }
    if envelope.min_ts_ns is not None and envelope.max_ts_ns is not None:
        parts["min_ts"] = encode_integer(envelope.min_ts_ns)
        parts["max_ts"] = encode_integer(envelope.max_ts_ns)
    pairs = (encode_text(key) + parts[key] for key in sorted(parts, key=key_order))
    return encode_map_head(len(parts)) + b"".join(pairs)


def _encode_resource(resource: Resource) -> bytes:
    values = dict(resource)
    if len(values) != len(resource):
        raise InvalidFrame("resource", "has a key twice")
    if len(values) > RESOURCE_ENTRIES_MAX:
        raise InvalidFrame("resource", f"has more than {RESOURCE_ENTRIES_MAX} entries")
    try:
        pairs = [
            encode_text(key) + encode_text(values[key]) for key in sorted(values, key=key_order)
        ]
    except UnicodeEncodeError as error:
        raise InvalidFrame("resource", "text is not valid UTF-8") from error
    return encode_map_head(len(pairs)) + b"".join(pairs)


def decode_envelope(view: memoryview) -> Envelope:
    """Decode an envelope strictly.

    Raises:
        InvalidFrame: It breaks a rule; the error names the field.
        UnsupportedVersion: `wire_version` is not 1.
    """
    short = _read_short(view)
    if short is not None:
        return _build(short)
    reader = CborReader(view, "envelope")
    found: dict[str, object] = {}
    key: str | None = None
    for _ in range(reader.map_size(len(_READERS))):
        reader.field = "envelope"
        key = reader.key(key)
        if key not in _READERS:
            raise reader.refuse(f"contains an unknown key, key=`{shown(key)}`")
        reader.field = key
        found[key] = _READERS[key](reader)
    reader.field = "envelope"
    reader.end()
    return _build(found)


def _read_resource(reader: CborReader) -> Resource:
    pairs: list[tuple[str, str]] = []
    for _ in range(reader.map_size(RESOURCE_ENTRIES_MAX)):
        key = reader.key(pairs[-1][0] if pairs else None)
        pairs.append((key, reader.text()))
    return tuple(pairs)


def _read_kind(reader: CborReader) -> str:
    kind = reader.text()
    if kind not in _KINDS:
        raise reader.refuse(f"must be one of {', '.join(_KINDS)}, kind=`{shown(kind)}`")
    return kind


def _read_version(reader: CborReader) -> int:
    version = reader.integer()
    if version != WIRE_VERSION:
        raise UnsupportedVersion("envelope of a frame", version, WIRE_VERSION)
    return version


def _read_i64(reader: CborReader) -> int:
    value = reader.integer()
    if value not in _I64:
        raise reader.refuse("is outside the range of a 64-bit integer")
    return value


_READERS: Final[dict[str, Callable[[CborReader], object]]] = {
    "wire_version": _read_version,
    "agent_id": CborReader.text,
    "boot_id": CborReader.text,
    "seq_start": _read_i64,
    "seq_end": _read_i64,
    "count": _read_i64,
    "kind": _read_kind,
    "min_ts": _read_i64,
    "max_ts": _read_i64,
    "resource": _read_resource,
}
_SHORT_FORMS: Final = {
    "agent_id": ShortForm.TEXT,
    "boot_id": ShortForm.TEXT,
    "kind": ShortForm.TEXT,
    "resource": ShortForm.TEXT_MAP,
}
_SHORT_KEYS: Final = short_keys(
    (name, _SHORT_FORMS.get(name, ShortForm.INTEGER), None) for name in _READERS
)


def _read_short(view: memoryview) -> dict[str, object] | None:
    """Return the values of an envelope that breaks no rule of a reader; None if it may."""
    found = read_short_map(view, _SHORT_KEYS)
    if (
        found is None
        or found.get("wire_version") != WIRE_VERSION
        or found.get("kind") not in _KINDS
    ):
        return None
    for value in found.values():
        if isinstance(value, int) and value not in _I64:
            return None
        if isinstance(value, tuple) and len(value) > RESOURCE_ENTRIES_MAX:
            return None
    return dict(found)


_REQUIRED: Final = tuple(key for key in _READERS if key not in ("min_ts", "max_ts"))


def _build(found: dict[str, object]) -> Envelope:
    for key in _REQUIRED:
        if key not in found:
            raise InvalidFrame(key, "is missing")
    envelope = Envelope(
        agent_id=cast("str", found["agent_id"]),
        boot_id=cast("str", found["boot_id"]),
        seq_start=cast("int", found["seq_start"]),
        seq_end=cast("int", found["seq_end"]),
        count=cast("int", found["count"]),
        kind=cast("Kind", found["kind"]),
        min_ts_ns=cast("int | None", found.get("min_ts")),
        max_ts_ns=cast("int | None", found.get("max_ts")),
        resource=cast("Resource", found["resource"]),
    )
    if envelope.count != envelope.identity.count:
        raise InvalidFrame("count", "is not seq_end - seq_start + 1")
    _check_span(envelope)
    return envelope


def _check_span(envelope: Envelope) -> None:
    if (envelope.min_ts_ns is None) != (envelope.max_ts_ns is None):
        missing = "min_ts" if envelope.min_ts_ns is None else "max_ts"
        raise InvalidFrame(missing, "is missing although the other end of the time span is set")
    if envelope.min_ts_ns is None and envelope.kind != "entries":
        raise InvalidFrame("min_ts", f"is missing: {envelope.kind} need it")
