"""The bucket's configuration, except its policy, in the form of the S3 calls that set it.

S3 applies a lifecycle itself, past every policy. A document is therefore judged as a whole: each
rule is compared with each prefix of the deployment, with filters by tag or size ignored, because an
object may have any tag and size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_policies.access_matrix import GC
from sluice_policies.model import Json
from sluice_policies.settings import BlobClass, Settings
from sluice_protocol import keys
from sluice_protocol.blob_deletion import EXPIRING, PERMANENT

READABLE_CLASSES: Final = frozenset({"INTELLIGENT_TIERING", "GLACIER_IR", "STANDARD_IA"})
"""Storage classes in several zones whose objects are read without a restore."""
DELETES_CURRENT: Final = "lifecycle-deletes-no-current-object"
DELETES_VERSIONS: Final = "lifecycle-keeps-permanent-versions"
MOVES_AWAY: Final = "lifecycle-keeps-objects-readable"
RULES: Final = {
    DELETES_CURRENT: "no lifecycle rule deletes a current object of the deployment",
    DELETES_VERSIONS: "no lifecycle rule deletes an older version under accepted/, raw-blobs/ or "
    "another prefix of decisions or evidence",
    MOVES_AWAY: "a lifecycle rule moves objects only to a storage class in several zones that is "
    "read without a restore",
}
"""What is required of every lifecycle, by name."""

_EVERYWHERE: Final = tuple(dict.fromkeys((*keys.ALL_PREFIXES, *EXPIRING, GC)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleFault:
    """A rule of a lifecycle that would lose data.

    Attributes:
        requirement: The name of the violated requirement in `RULES`.
        prefixes: The prefixes of the deployment that it reaches.
        effect: What would happen, and the remedy.
    """

    requirement: str
    rule: str
    elements: tuple[str, ...]
    prefixes: tuple[str, ...]
    effect: str

    def __str__(self) -> str:
        where = ", ".join(self.prefixes)
        return f"rule {self.rule!r} ({', '.join(self.elements)}) reaches {where}: {self.effect}"


def lifecycle_document(settings: Settings) -> Json:
    """Return the lifecycle that `sluice policies` sets, in the form of the S3 call."""
    place, wanted = settings.bucket.prefix, settings.lifecycle
    rules: list[Json] = [
        {
            "ID": "abort-incomplete-multipart-uploads",
            "Status": "Enabled",
            "Filter": {"Prefix": place},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": wanted.abort_multipart_days},
        }
    ]
    rules += [
        {
            "ID": expiry_name(prefix),
            "Status": "Enabled",
            "Filter": {"Prefix": f"{place}{prefix}"},
            "NoncurrentVersionExpiration": {"NoncurrentDays": wanted.noncurrent_days},
            "Expiration": {"ExpiredObjectDeleteMarker": True},
        }
        for prefix in EXPIRING
    ]
    if wanted.blob_class is not BlobClass.STANDARD:
        move: Json = {"Days": wanted.blob_class_days, "StorageClass": storage_class(settings)}
        rules.append(
            {
                "ID": "move-old-blobs",
                "Status": "Enabled",
                "Filter": {"Prefix": f"{place}{keys.RAW_BLOBS}"},
                "Transitions": [move],
            }
        )
    return {"Rules": rules}


def expiry_name(prefix: str) -> str:
    """Return the id of the rule that expires noncurrent versions under a prefix."""
    return f"expire-noncurrent-{prefix.partition('/')[0]}"


def storage_class(settings: Settings) -> str:
    """Return S3's name of the storage class of old blobs."""
    return settings.lifecycle.blob_class.value.replace("-", "_").upper()


def _active_rules(document: Json) -> Iterator[Mapping[str, Json]]:
    rules = document.get("Rules", ()) if isinstance(document, Mapping) else ()
    for rule in rules if isinstance(rules, Sequence) else ():
        if isinstance(rule, Mapping) and rule.get("Status") != "Disabled":
            yield rule


def _prefix_of(rule: Mapping[str, Json]) -> str:
    inner = rule.get("Filter", {})
    found = inner if isinstance(inner, Mapping) else {}
    both = found.get("And", {})
    for place in (found, both, rule):
        if isinstance(place, Mapping) and isinstance(place.get("Prefix"), str):
            return str(place["Prefix"])
    return ""


def _reached(settings: Settings, prefix: str, prefixes: Sequence[str]) -> tuple[str, ...]:
    whole = [(one, f"{settings.bucket.prefix}{one}") for one in prefixes]
    return tuple(one for one, full in whole if full.startswith(prefix) or prefix.startswith(full))


def _only_markers(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) <= {"ExpiredObjectDeleteMarker"}


def _unreadable(moves: Json) -> Iterator[str]:
    for move in moves if isinstance(moves, Sequence) and not isinstance(moves, str) else ():
        named = move.get("StorageClass") if isinstance(move, Mapping) else None
        if named not in READABLE_CLASSES:
            yield str(named)


def _faults_of(settings: Settings, rule: Mapping[str, Json]) -> Iterator[LifecycleFault]:
    prefix, name = _prefix_of(rule), str(rule.get("ID", "without a name"))
    everywhere = _reached(settings, prefix, _EVERYWHERE)
    permanent = _reached(settings, prefix, PERMANENT)
    if everywhere and not _only_markers(rule.get("Expiration", {})):
        yield LifecycleFault(
            requirement=DELETES_CURRENT,
            rule=name,
            elements=("Expiration",),
            prefixes=everywhere,
            effect="current objects would be lost, which no policy can prevent; remove the rule",
        )
    if permanent and "NoncurrentVersionExpiration" in rule:
        yield LifecycleFault(
            requirement=DELETES_VERSIONS,
            rule=name,
            elements=("NoncurrentVersionExpiration",),
            prefixes=permanent,
            effect="an older version can be the only copy of accepted bytes or of their evidence, "
            "and would be lost, which no policy can prevent; limit the rule to other prefixes",
        )
    for element in ("Transitions", "NoncurrentVersionTransitions"):
        wrong = tuple(dict.fromkeys(_unreadable(rule.get(element, ()))))
        if everywhere and wrong:
            yield LifecycleFault(
                requirement=MOVES_AWAY,
                rule=name,
                elements=(element,),
                prefixes=everywhere,
                effect=f"in storage class {', '.join(wrong)} reads fail until a restore, or one "
                f"zone has the only copy; use one of {', '.join(sorted(READABLE_CLASSES))}",
            )


def lifecycle_faults(settings: Settings, document: Json) -> tuple[LifecycleFault, ...]:
    """Return every rule of a lifecycle that would delete, lose or block objects of a deployment.

    `document` has the form of the S3 calls; None for none.
    """
    found = (fault for rule in _active_rules(document) for fault in _faults_of(settings, rule))
    return tuple(found)


class ConfigurationPart(StrEnum):
    """One part of a bucket's configuration."""

    VERSIONING = "versioning"
    OBJECT_LOCK = "object-lock"
    OWNERSHIP = "ownership"
    PUBLIC_ACCESS = "public-access-block"
    ENCRYPTION = "encryption"
    LIFECYCLE = "lifecycle"
    NOTIFICATION = "notification"


def _encryption(settings: Settings) -> Json:
    kms = settings.encryption.mode == "sse-kms"
    default: dict[str, Json] = {"SSEAlgorithm": "aws:kms" if kms else "AES256"}
    if kms:
        default["KMSMasterKeyID"] = settings.encryption.kms_key
    return {"Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": kms}]}


def _notification(settings: Settings) -> Json:
    found: dict[str, Json] = {}
    if settings.notifications.eventbridge:
        found["EventBridgeConfiguration"] = {}
    if settings.notifications.queue_arn:
        accepted = f"{settings.bucket.prefix}{keys.ACCEPTED}"
        found["QueueConfigurations"] = [
            {
                "Id": "sluice-accepted",
                "QueueArn": settings.notifications.queue_arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": accepted}]}},
            }
        ]
    return found


def _object_lock(settings: Settings) -> Json:
    lock = settings.object_lock
    if lock is None:
        return None
    retention: Json = {"Mode": lock.mode, "Days": lock.days}
    return {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}


def configuration(settings: Settings) -> dict[ConfigurationPart, Json]:
    """Return every part to set, in a safe order.

    Versioning comes first, so that no later change can lose the only copy of an object. Object Lock
    is omitted unless it is configured.
    """
    parts: dict[ConfigurationPart, Json] = {
        ConfigurationPart.VERSIONING: {"Status": "Enabled"},
        ConfigurationPart.OBJECT_LOCK: _object_lock(settings),
        ConfigurationPart.OWNERSHIP: {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        ConfigurationPart.PUBLIC_ACCESS: {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        ConfigurationPart.ENCRYPTION: _encryption(settings),
        ConfigurationPart.LIFECYCLE: lifecycle_document(settings),
        ConfigurationPart.NOTIFICATION: _notification(settings),
    }
    return {part: value for part, value in parts.items() if value is not None}
