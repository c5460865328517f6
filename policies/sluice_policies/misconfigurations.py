"""Misconfigurations of a live bucket that would lose data, whatever the policies deny."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice_policies.configuration import ConfigurationPart
from sluice_policies.lifecycle import lifecycle_faults
from sluice_policies.live_documents import REPLICATION, LiveDocuments
from sluice_policies.settings import Settings
from sluice_protocol import keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Misconfiguration:
    """A setting that would lose data.

    Attributes:
        part: The part of the configuration.
        description: The effect, the objects concerned, and the remedy.
    """

    part: str
    description: str


def _clearing(settings: Settings, live: LiveDocuments) -> Iterator[Misconfiguration]:
    for fault in lifecycle_faults(settings, live.parts.get(ConfigurationPart.LIFECYCLE)):
        yield Misconfiguration(part=ConfigurationPart.LIFECYCLE, description=str(fault))


def _versioning(live: LiveDocuments) -> Iterator[Misconfiguration]:
    value = live.parts.get(ConfigurationPart.VERSIONING)
    status = value.get("Status", "Off") if isinstance(value, Mapping) else "Off"
    if status != "Enabled":
        yield Misconfiguration(
            part=ConfigurationPart.VERSIONING,
            description=f"versioning is {status}: an overwrite or delete under {keys.RAW_BLOBS} "
            f"loses the only copy, a late delete removes a blob that was written "
            f"again, and GC only plans; enable versioning",
        )


def _lock(settings: Settings, live: LiveDocuments) -> Iterator[Misconfiguration]:
    if settings.object_lock is not None and live.parts.get(ConfigurationPart.OBJECT_LOCK) is None:
        yield Misconfiguration(
            part=ConfigurationPart.OBJECT_LOCK,
            description=(
                "Object Lock is configured in the settings but not enabled: versions can be "
                "deleted at any age"
            ),
        )


def _replication(live: LiveDocuments) -> Iterator[Misconfiguration]:
    if live.replication is not None:
        yield Misconfiguration(
            part=REPLICATION,
            description="objects are replicated out of the bucket without a setting for it: "
            "accepted bytes are copied to a place without these rules; remove the "
            "replication, or confirm that it is intended",
        )


def find_misconfigurations(settings: Settings, live: LiveDocuments) -> tuple[Misconfiguration, ...]:
    """Return every misconfiguration of the live bucket."""
    return (
        *_versioning(live),
        *_clearing(settings, live),
        *_lock(settings, live),
        *_replication(live),
    )
