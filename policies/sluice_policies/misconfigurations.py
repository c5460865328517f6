"""Misconfigurations of a live bucket that would lose data, whatever the policies deny."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice_policies.access_matrix import GUARDED_WRITES
from sluice_policies.configuration import ConfigurationPart
from sluice_policies.live_documents import REPLICATION, LiveDocuments
from sluice_policies.model import Json
from sluice_policies.settings import Settings
from sluice_protocol import keys

EXPIRIES = ("Expiration", "NoncurrentVersionExpiration")
MOVES = ("Transitions", "NoncurrentVersionTransitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misconfiguration:
    """A setting that would lose data.

    Attributes:
        part: The part of the configuration.
        description: The effect, the objects concerned, and the remedy.
    """

    part: str
    description: str


def _rules(value: Json) -> Iterator[Mapping[str, Json]]:
    rules = value.get("Rules", ()) if isinstance(value, Mapping) else ()
    for rule in rules if isinstance(rules, Sequence) else ():
        if isinstance(rule, Mapping) and rule.get("Status") != "Disabled":
            yield rule


def _rule_prefix(rule: Mapping[str, Json]) -> str:
    inner = rule.get("Filter", {})
    found = inner if isinstance(inner, Mapping) else {}
    both = found.get("And", {})
    for place in (found, both, rule):
        if isinstance(place, Mapping) and isinstance(place.get("Prefix"), str):
            return str(place["Prefix"])
    return ""


def _expires(name: str, value: Json) -> bool:
    """Return True if an element deletes objects; one that only removes delete markers does not."""
    only_markers = isinstance(value, Mapping) and set(value) == {"ExpiredObjectDeleteMarker"}
    return not (name == "Expiration" and only_markers)


def _reached(settings: Settings, prefix: str) -> tuple[str, ...]:
    whole = [(p, f"{settings.bucket.prefix}{p}") for p in GUARDED_WRITES]
    return tuple(p for p, full in whole if full.startswith(prefix) or prefix.startswith(full))


def _clearing(settings: Settings, live: LiveDocuments) -> Iterator[Misconfiguration]:
    for rule in _rules(live.parts.get(ConfigurationPart.LIFECYCLE)):
        prefix = _rule_prefix(rule)
        reached = _reached(settings, prefix)
        name = str(rule.get("ID", "without a name"))
        gone = [e for e in EXPIRIES if e in rule and _expires(e, rule[e])]
        moved = [e for e in MOVES if e in rule]
        if reached and gone:
            yield Misconfiguration(
                part=ConfigurationPart.LIFECYCLE,
                description=f"rule {name!r} ({', '.join(gone)}) would delete objects under "
                f"{', '.join(reached)}: accepted bytes or their evidence would be lost, and "
                f"no policy can stop a lifecycle; remove the rule",
            )
        if reached and moved:
            yield Misconfiguration(
                part=ConfigurationPart.LIFECYCLE,
                description=f"rule {name!r} ({', '.join(moved)}) may move {', '.join(reached)} "
                "to a storage class where reads fail until a restore; remove the rule",
            )


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
