"""The settings that all parts of one deployment share.

`authority/v1/settings.json` is written once. A change of the acceptance mode is a separate record,
`authority/v1/switches/<number>.json`, which is also created once: its number is the
compare-and-swap. So is a change of the number of lanes, `authority/v1/lanes/<number>.json`.
Source: ADR 16 and 50.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUTHORITY, AUTHORITY_SETTINGS
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import NS_PER_S, ObjectKey

AcceptanceMode = Literal["s3_manifest", "local_spool"]

RETRY_HORIZON_S_DEFAULT: Final = 7 * 24 * 3600
MARGIN_S_DEFAULT: Final = 3600
UPLOAD_TIME_S_MAX: Final = 30
"""Longest total time of one upload's tries, seconds; after it a gateway responds 503."""
SKEW_S_MAX: Final = 5
"""Largest difference between a store's Date and Last-Modified, seconds, besides the cut to 1 s."""
VISIBILITY_S_MAX: Final = 10
"""Longest time by which an object's Last-Modified may be older than its visibility, seconds.

Half the smallest margin is larger: an object that was named in time for a gateway is visible
before any audit on which a deletion of its blob may rely begins (ADR 8).
"""
LANES_MAX: Final = 1000
COPY_AFTER_NS: Final = 3600 * NS_PER_S
"""Time between the creation of the settings and their date in the store, at most: both are by the
store's clock, and a create is repeated for minutes at most."""
SWITCHES_MAX: Final = 1000
"""Most mode switches of one authority; a reader requests them one at a time."""


class LaneCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of lanes under which each entry of a queue was appended.

    Attributes:
        before: For each change, the last sequence before it and the number of lanes until then.
        lanes: The number of lanes since the last change.
    """

    before: tuple[tuple[int, int], ...] = ()
    lanes: int

    def of_sequence(self, sequence: int) -> int:
        """Return the number of lanes under which an entry was appended."""
        return next((lanes for last, lanes in self.before if sequence <= last), self.lanes)

    @property
    def each(self) -> frozenset[int]:
        """Every number of lanes so far."""
        return frozenset({self.lanes, *(lanes for _, lanes in self.before)})

    @property
    def most(self) -> int:
        """The highest number of lanes so far."""
        return max(self.each)

    def sql(self, sequence: str) -> str:
        """Return a SQL expression for the number of lanes of the entry that a column names."""
        if not self.before:
            return str(self.lanes)
        cases = " ".join(f"WHEN {sequence} <= {last} THEN {lanes}" for last, lanes in self.before)
        return f"(CASE {cases} ELSE {self.lanes} END)"


LANE_CHANGES_MAX: Final = 999
"""Most changes of the number of lanes; a reader requests them one at a time."""


class LaneChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the number of lanes.

    Every register continues after the same sequence. So the sequence of an entry states under which
    number of lanes it was appended, and with its agent in which lane.

    Attributes:
        number: 1 for the first change, without gaps: the number of the layout of lanes that it
            began, which registers and lane states name.
        lanes: Number of lanes from now on.
        lanes_before: Number of lanes until now.
        after_sequence: Every earlier entry of every lane has this sequence or a lower one.
        ends: The last entry of each lane of the ingest queue before the change, three digits each.
            The tables contain all of them.
    """

    schema: Literal["sluice.lane_change.v1"] = "sluice.lane_change.v1"
    number: int
    lanes: int
    lanes_before: int
    after_sequence: int
    ends: dict[str, int]
    changed_at_unix_ns: int = 0


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an acceptance authority: one bucket or directory plus one prefix.

    Attributes:
        authority_id: ULID made by `sluice init`; certificates and plans contain it.
        retry_horizon_s: How long an agent may keep sending the same bytes, seconds. Garbage
            collection deletes only what is older. Never lowered under a running deployment.
        margin_s: Safety margin between a gateway's rule and the rule of garbage collection,
            seconds.
        lanes: Number of queue lanes, 1 to 1000.
        spool_writer: In `local_spool`, the collector id of the one gateway; else None.
        created_at_unix_ns: The store's clock when the authority was created.
        lane_changes: Every change of the number of lanes, the oldest first; the stored settings
            never contain it.
    """

    schema: Literal["sluice.authority.v1"] = "sluice.authority.v1"
    authority_id: str
    retry_horizon_s: int = RETRY_HORIZON_S_DEFAULT
    margin_s: int = MARGIN_S_DEFAULT
    lanes: int = 4
    acceptance: AcceptanceMode = "s3_manifest"
    spool_writer: str | None = None
    created_at_unix_ns: int = 0
    lane_changes: tuple[LaneChange, ...] | UnsetType = UNSET

    @property
    def changes(self) -> tuple[LaneChange, ...]:
        """Every change of the number of lanes, the oldest first."""
        return () if isinstance(self.lane_changes, UnsetType) else self.lane_changes

    @property
    def layout(self) -> int:
        """The number of the layout of lanes: how often the number of lanes was changed."""
        return len(self.changes)

    @property
    def lanes_ever(self) -> int:
        """The highest number of lanes so far: so many registers and positions can exist."""
        return max([self.lanes, *(one.lanes_before for one in self.changes)])

    @property
    def after_sequence(self) -> int:
        """The sequence after which each lane continued at the last change; 0 without one."""
        return self.changes[-1].after_sequence if self.changes else 0

    @property
    def lane_counts(self) -> LaneCounts:
        """The number of lanes of every entry, by its sequence."""
        before = [(one.after_sequence, one.lanes_before) for one in self.changes]
        return LaneCounts(before=tuple(before), lanes=self.lanes)

    @property
    def retry_horizon_ns(self) -> int:
        """The retry horizon in nanoseconds."""
        return self.retry_horizon_s * NS_PER_S

    @property
    def margin_ns(self) -> int:
        """The safety margin in nanoseconds."""
        return self.margin_s * NS_PER_S

    @property
    def proof_window_ns(self) -> int:
        """Largest age of a blob's proof when its manifest appears: `retry_horizon - margin`."""
        return self.retry_horizon_ns - self.margin_ns


def check_authority(settings: Authority) -> None:
    """Reject settings under which acceptance and garbage collection could disagree.

    Raises:
        BadUsage: `retry_horizon` is below `3 * margin`, or `margin` below `2 * (upload + skew + 1
            s)`.
            Or the lane count is out of range, or `local_spool` names no writer.
    """
    margin_floor_s = 2 * (UPLOAD_TIME_S_MAX + SKEW_S_MAX + 1)
    if settings.margin_s < margin_floor_s:
        raise BadUsage(
            f"margin_s must be at least {margin_floor_s}, margin_s=`{settings.margin_s}`"
        )
    if settings.retry_horizon_s < 3 * settings.margin_s:
        raise BadUsage(
            "retry_horizon_s must be at least three times margin_s,"
            f" retry_horizon_s=`{settings.retry_horizon_s}`, margin_s=`{settings.margin_s}`"
        )
    if not 1 <= settings.lanes <= LANES_MAX:
        raise BadUsage(f"lanes must be 1 to {LANES_MAX}, lanes=`{settings.lanes}`")
    if (settings.acceptance == "local_spool") != (settings.spool_writer is not None):
        raise BadUsage(
            "local_spool needs spool_writer, the collector id of its one gateway; s3_manifest "
            "has none"
        )


def decode_authority(body: bytes) -> Authority:
    """Decode the settings and check them."""
    settings = decode_record(AUTHORITY_SETTINGS, body, Authority)
    try:
        check_authority(settings)
    except BadUsage as error:
        raise InvalidRecord(AUTHORITY_SETTINGS, str(error)) from error
    return settings


class ModeSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the acceptance mode; all other settings stay the same.

    Numbers begin at 1 and have no gaps. `spool_writer` is the collector id of the one gateway in
    `local_spool`; else None. The time is the store's clock when the switch was requested.
    """

    schema: Literal["sluice.authority_switch.v1"] = "sluice.authority_switch.v1"
    number: int
    acceptance: AcceptanceMode
    spool_writer: str | None = None
    switched_at_unix_ns: int = 0


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """The record that newer decisions were applied to a restored copy of a store.

    Attributes:
        number: 1 for the first restore of the authority, without gaps.
        restored_at_unix_ns: By the store's clock, after the decisions were applied.
        applied: The objects that were missing in the copy, by prefix; null if the operator stated
            that there is no newer copy.
    """

    schema: Literal["sluice.restore.v1"] = "sluice.restore.v1"
    number: int
    authority_id: str
    restored_by: str
    restored_at_unix_ns: int
    applied: dict[str, int] | None


def restore_key(number: int) -> ObjectKey:
    """Return the key of the record of a restore."""
    return ObjectKey(f"{AUTHORITY}restores/{number:06d}.json")


def is_copy(settings: Authority, last_modified_ns: int, restored_at_ns: int) -> bool:
    """Return True if a store is a copy to which newer decisions may be missing.

    The settings are written once, and the store dates them itself. So a date that is later than
    their creation, and than the last restore, is that of a copy.
    """
    created_ns = settings.created_at_unix_ns
    known_ns = max(created_ns, restored_at_ns)
    return created_ns > 0 and last_modified_ns > known_ns + COPY_AFTER_NS


def mode_switch_key(number: int) -> ObjectKey:
    """Return the key of the mode switch with this number."""
    return ObjectKey(f"{AUTHORITY}switches/{number:06d}.json")


def decode_mode_switch(number: int, body: bytes) -> ModeSwitch:
    """Decode a mode switch."""
    switch = decode_record(mode_switch_key(number), body, ModeSwitch)
    if switch.number != number:
        raise InvalidRecord(mode_switch_key(number), "mode switch has another number than its key")
    return switch


def apply_mode_switch(settings: Authority, switch: ModeSwitch) -> Authority:
    """Return the settings after a mode switch."""
    after = msgspec.structs.replace(
        settings, acceptance=switch.acceptance, spool_writer=switch.spool_writer
    )
    try:
        check_authority(after)
    except BadUsage as error:
        raise InvalidRecord(mode_switch_key(switch.number), str(error)) from error
    return after


def lane_change_key(number: int) -> ObjectKey:
    """Return the key of the change of the number of lanes with this number."""
    return ObjectKey(f"{AUTHORITY}lanes/{number:06d}.json")


def decode_lane_change(number: int, body: bytes) -> LaneChange:
    """Decode a change of the number of lanes."""
    key = lane_change_key(number)
    change = decode_record(key, body, LaneChange)
    if change.number != number or not 1 <= change.lanes <= LANES_MAX:
        raise InvalidRecord(key, "change of lanes has another number than its key, or no lanes")
    return change


def apply_lane_change(settings: Authority, change: LaneChange) -> Authority:
    """Return the settings after a change of the number of lanes."""
    if settings.lanes != change.lanes_before or change.after_sequence < settings.after_sequence:
        raise InvalidRecord(
            lane_change_key(change.number), "change of lanes does not follow the one before"
        )
    return msgspec.structs.replace(
        settings, lanes=change.lanes, lane_changes=(*settings.changes, change)
    )
