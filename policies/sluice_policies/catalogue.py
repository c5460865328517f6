"""The S3 actions on buckets and objects, what they apply to, and their condition keys.

The table (`catalogue.json`) is trimmed and dated; its header names the source. Lint, the prover and
the simulator read actions from here and never make them up.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

CONFIGURING_LEVELS: Final = ("Write", "Permissions management", "Tagging")


class On(StrEnum):
    """What an action names in its Resource: the bucket, an object in it, or its KMS key."""

    BUCKET = "bucket"
    OBJECT = "object"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action.

    Attributes:
        name: With its service, `s3:PutObject` say.
        level: `Read`, `Write`, `List`, `Tagging` or `Permissions management`.
        on: Bucket, object or key.
        keys: Condition keys of this action beside the common and global ones, lower case; a
            trailing `*` stands for a tag name.
    """

    name: str
    level: str
    on: On
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The whole table.

    Attributes:
        taken: The date of the table.
        actions: By lower-case name, since IAM ignores case in actions.
        other_actions: Actions of S3 on access points, jobs and the account: known, not on a bucket.
        common_keys: Keys that every action takes, lower case.
        global_keys: Keys of IAM itself, lower case.
        bool_keys: Those among all keys that hold `true` or `false`.
    """

    taken: str
    actions: dict[str, Action]
    other_actions: frozenset[str]
    common_keys: frozenset[str]
    global_keys: frozenset[str]
    bool_keys: frozenset[str]

    def known_key(self, key: str) -> bool:
        """Tells whether any action takes this condition key."""
        mine = frozenset[str]().union(*(action.keys for action in self.actions.values()))
        return key_in(key, self.common_keys | self.global_keys | mine)

    def applies(self, key: str, action: Action) -> bool:
        """Tells whether S3 fills this key in for this action."""
        return key_in(key, self.common_keys | self.global_keys | action.keys)


def key_in(key: str, keys: frozenset[str]) -> bool:
    """Tells whether a condition key is one of `keys`, a trailing `*` standing for a tag name."""
    low = key.lower()
    return low in keys or any(k.endswith("/*") and low.startswith(k[:-1]) for k in keys)


@cache
def catalogue() -> Catalogue:
    """Reads the table that ships with the package."""
    raw = json.loads(files("sluice_policies").joinpath("catalogue.json").read_text("utf-8"))
    actions = {
        f"s3:{name}".lower(): Action(
            name=f"s3:{name}",
            level=row["level"],
            on=On(row["on"]),
            keys=frozenset(key.lower() for key in row["keys"]),
        )
        for name, row in raw["actions"].items()
    }
    for name in raw["kms_actions"]:
        actions[f"kms:{name}".lower()] = Action(
            name=f"kms:{name}", level="Write", on=On.KEY, keys=frozenset()
        )
    return Catalogue(
        taken=raw["taken"],
        actions=actions,
        other_actions=frozenset(f"s3:{name}".lower() for name in raw["other_actions"]),
        common_keys=frozenset(key.lower() for key in raw["common_keys"]),
        global_keys=frozenset(key.lower() for key in raw["global_keys"]),
        bool_keys=frozenset(key.lower() for key in raw["bool_keys"]),
    )


def object_actions() -> tuple[str, ...]:
    """Gives every action on an object, by name."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.OBJECT)


def bucket_actions() -> tuple[str, ...]:
    """Gives every action on a bucket, by name."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.BUCKET)


def key_actions() -> tuple[str, ...]:
    """Gives every action on a KMS key that concerns encryption."""
    return tuple(a.name for a in catalogue().actions.values() if a.on is On.KEY)


def reconfiguring_actions() -> tuple[str, ...]:
    """Gives every action that changes a bucket rather than an object, making one aside."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.on is On.BUCKET
        and action.level in CONFIGURING_LEVELS
        and action.name != "s3:CreateBucket"
    )


def inspecting_actions() -> tuple[str, ...]:
    """Gives every action that reads a bucket's configuration."""
    return tuple(
        action.name
        for action in catalogue().actions.values()
        if action.on is On.BUCKET and action.level == "Read"
    )
