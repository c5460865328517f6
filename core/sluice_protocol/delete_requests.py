"""Requests for a delete, from a command line or over HTTP, and the one decision that both share.

The id of a delete is also the client's key: a request that is sent again with the same id has no
further effect. The stored record decides what the id means. A request is the same as the stored
one if it leads to the same record with the cut-off of the stored record.
"""

import math
import re
from typing import Final

import msgspec

from sluice_protocol.active_deletes import delete_id_time_ns
from sluice_protocol.errors import BadUsage
from sluice_protocol.manifests import Kind
from sluice_protocol.record_deletes import DeleteRecord, Where, parse_where
from sluice_protocol.timestamps import parse_rfc3339
from sluice_protocol.units import NS_PER_S

WHERE_CHARS_MAX: Final = 4_000
REASON_CHARS_MAX: Final = 1_000
DAYS_MAX: Final = 36_500
ID_AGE_MAX_NS: Final = 24 * 3600 * NS_PER_S
"""An older id is refused for a new delete, because readers list the newest ids only."""
ID_AHEAD_MAX_NS: Final = 3600 * NS_PER_S
_ID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_DAY_NS: Final = 24 * 3600 * NS_PER_S
_SHOWN_CHARS_MAX: Final = 40


class DeleteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for one delete.

    Attributes:
        delete_id: The client's key, a ULID; a new one is chosen if it is absent.
        kind: Kind of the records.
        where: Conditions as `parse_where` reads them.
        from_: Only records at or after this time, RFC 3339.
        to: Only records before this time, RFC 3339.
        older_than_days: Only records older than this many days; excludes `to`.
        reason: Why, for readers.
        dry_run: Count what would be hidden, and write nothing.
    """

    delete_id: str | None = None
    kind: Kind = "logs"
    where: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    older_than_days: float | None = None
    reason: str = ""
    dry_run: bool = False


def decide_delete(
    request: DeleteRequest, *, delete_id: str, now_ns: int, principal: str
) -> DeleteRecord:
    """Return the record that a request leads to.

    Args:
        request: The request.
        delete_id: Its id.
        now_ns: The store's clock, which becomes the cut-off.
        principal: Who requests it.

    Raises:
        BadUsage: A value is malformed or too long, or no record could meet the conditions.
    """
    _check_length("where", request.where or "", WHERE_CHARS_MAX)
    _check_length("reason", request.reason, REASON_CHARS_MAX)
    where = Where() if request.where is None else parse_where(request.where, request.kind)
    if request.older_than_days is not None and request.to is not None:
        raise BadUsage("a delete has one end: omit `to` or `older_than_days`")
    to_ns: int | None = None if request.to is None else parse_rfc3339(request.to)
    if request.older_than_days is not None:
        to_ns = now_ns - _age_ns(request.older_than_days)
    try:
        return DeleteRecord(
            delete_id=delete_id,
            kind=request.kind,
            accepted_until_unix_ns=now_ns,
            from_unix_ns=None if request.from_ is None else parse_rfc3339(request.from_),
            to_unix_ns=to_ns,
            agent_id=where.agent_id,
            contains=where.contains,
            attributes=dict(where.attributes),
            reason=request.reason,
            principal=principal,
        )
    except ValueError as error:
        raise BadUsage(str(error)) from error


def check_new_id(delete_id: str, now_ns: int) -> None:
    """Check that an id may name a new delete.

    Args:
        delete_id: The id.
        now_ns: The store's clock.

    Raises:
        BadUsage: Its time is more than a day ago or more than an hour ahead.
    """
    age_ns = now_ns - delete_id_time_ns(delete_id)
    if not -ID_AHEAD_MAX_NS <= age_ns <= ID_AGE_MAX_NS:
        raise BadUsage(
            "delete_id is too old or in the future for a new delete: use a new ULID, and check"
            f" the clock, delete_id=`{delete_id}`"
        )


def check_delete_id(text: str) -> str:
    """Return the text if it is a ULID in upper case.

    Raises:
        BadUsage: It is not.
    """
    if _ID.fullmatch(text) is None:
        raise BadUsage(
            "delete_id must be a ULID: 26 characters, upper case,"
            f" delete_id=`{text[:_SHOWN_CHARS_MAX]}`"
        )
    return text


def is_same_request(request: DeleteRequest, stored: DeleteRecord, principal: str) -> bool:
    """Return True if a stored delete is the result of this request.

    Raises:
        BadUsage: As `decide_delete`.
    """
    again = decide_delete(
        request,
        delete_id=stored.delete_id,
        now_ns=stored.accepted_until_unix_ns,
        principal=principal,
    )
    return again == stored


def _age_ns(days: float) -> int:
    if not math.isfinite(days) or not 0 <= days <= DAYS_MAX:
        raise BadUsage(f"older_than_days must be 0 to {DAYS_MAX}, older_than_days=`{days}`")
    return round(days * _DAY_NS)


def _check_length(name: str, text: str, chars_max: int) -> None:
    if len(text) > chars_max:
        raise BadUsage(f"{name} must have at most {chars_max} characters, characters=`{len(text)}`")
