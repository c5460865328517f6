"""What identifies a request to a door: a name that came with it, its records, or nothing."""

from dataclasses import dataclass

import msgspec

from sluice_door_http.routes import DoorRequest
from sluice_doors.canonical import canonical, form_digest
from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.timed_lines import TimedLines, lines_digest
from sluice_protocol.columns import kind_of
from sluice_protocol.request_identity import (
    DoorName,
    IdentitySource,
    RequestIdentity,
    request_identity,
)
from sluice_protocol.units import UnixNs


class RequestOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is, and how it names itself.

    Attributes:
        principal: The sender.
        door: The protocol.
        key: The name that came with the request; empty where there is none.
        unique: A value that no other request has, for a request that cannot be recognised.
    """

    principal: str
    door: DoorName
    key: bytes
    unique: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalRecords:
    """The records of one kind of a request.

    Attributes:
        records: The records, in canonical form.
        named: What identifies them: the same, with a constant in place of the time of receipt
            where the request has a key. That time differs in every retry.
    """

    records: DecodedRecords
    named: DecodedRecords


def canonical_records(
    plain: bytes, wanted: DoorRequest, received_ns: UnixNs
) -> list[CanonicalRecords]:
    """Decode a body without its content coding, and return the records of each kind.

    Every door calls this function, so it enforces the rule of all doors: a body that is not empty
    and yields no record is refused. A client that got a success would never send the records again
    that were in the body in a form that the decoder does not know.

    Raises:
        BodyUnreadable: It is not empty, and no record of it can be read.
        BodyTooLarge: Its records expand to more than the limits.
    """
    decoded = [canonical(records) for records in wanted.decode(plain, received_ns)]
    if plain and not decoded:
        raise BodyUnreadable(
            f"no record was found in the body, which is not empty; check that it has the form of"
            f" this protocol and path, door=`{wanted.door}` bytes={len(plain)}"
        )
    named = decoded
    if wanted.key and not all(records.timed for records in decoded):
        named = [canonical(records) for records in wanted.decode(plain, UnixNs(0))]
    return [
        CanonicalRecords(records=records, named=constant)
        for records, constant in zip(decoded, named, strict=True)
    ]


def identity_of(named: DecodedRecords, origin: RequestOrigin) -> RequestIdentity:
    """Return the identity of the records of one kind of a request.

    Args:
        named: The records in canonical form, with a constant in place of the time of receipt where
            the request has a key.
        origin: The sender, and what identifies the request.

    Raises:
        BadUsage: The name of the principal is too long for an agent id.
    """
    source, value = _source(named, origin)
    return request_identity(
        principal=origin.principal,
        door=origin.door,
        kind=kind_of(named.columns),
        source=source,
        value=value,
    )


def identity_of_lines(found: TimedLines, origin: RequestOrigin) -> RequestIdentity:
    """Return the identity of a small request in the form of `TimedLines`.

    It differs from the identity of the same records as columns: one request has one form, because
    the choice follows from its records.

    Raises:
        BadUsage: The name of the principal is too long for an agent id.
    """
    return request_identity(
        principal=origin.principal,
        door=origin.door,
        kind="logs",
        source="key" if origin.key else "content",
        value=lines_digest(found) + origin.key,
    )


def _source(named: DecodedRecords, origin: RequestOrigin) -> tuple[IdentitySource, bytes]:
    """Return what identifies the request.

    A key is combined with the content: a sender that uses a key twice for other records sends two
    requests, and loses nothing. Records without their own time may be equal and meant twice, so
    without a key they identify nothing.
    """
    if origin.key:
        return "key", form_digest(named) + origin.key
    if named.timed:
        return "content", form_digest(named)
    return "none", origin.unique
