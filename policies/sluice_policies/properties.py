"""Properties of the documents: each is written once, independently of the statements.

A property is a list of cases. A case covers all requests of some actions in some range of keys:

- `ONLY_IF`: every allowed request meets the conditions; if `conditions` is None, none is allowed.
  Every caller is assumed to be an administrator of the account, unless the case is about the
  policy of one role.
- `CAN`: every request that meets the conditions is allowed.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice_policies.bucket_policy import ENDPOINT, SSE, SSE_CUSTOMER, SSE_KEY, TLS
from sluice_policies.model import Condition
from sluice_policies.settings import RoleName, Settings

CALLER: Final = "sluice:caller"
"""The caller, as the store names it, in the conditions of a property."""


class Sense(Enum):
    """The direction of a property."""

    ONLY_IF = "only if"
    CAN = "can"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyCase:
    """One case of a property.

    Attributes:
        actions: The actions, by name.
        where: Patterns of the object ARN; empty for actions on the bucket.
        outside: Whether the case covers every object that `where` does not match.
        conditions: The conditions to meet; None for "never allowed".
        role: The role whose policy is evaluated; None for any caller, in the worst case.
    """

    actions: tuple[str, ...]
    where: tuple[str, ...] = ()
    outside: bool = False
    conditions: tuple[Condition, ...] | None = None
    role: RoleName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A property that the documents must have.

    Attributes:
        name: Its name in reports and in `docs/policies.md`.
        description: The property in one sentence.
        sense: Its direction.
        cases: All must be true.
    """

    name: str
    description: str
    sense: Sense
    cases: tuple[PropertyCase, ...]


def equals(key: str, *values: str) -> Condition:
    """Return the condition that a key has one of these values."""
    return Condition(operator="StringEquals", key=key, values=values)


def absent(key: str) -> Condition:
    """Return the condition that a request does not have a key."""
    return Condition(operator="Null", key=key, values=("true",))


def absent_or(key: str, value: str) -> tuple[Condition, ...]:
    """Return conditions that an absent key or this one value meets.

    The value is used as a pattern: it must not contain wildcards of IAM.
    """
    return (Condition(operator="StringLikeIfExists", key=key, values=(value,)),)


def never(
    name: str, description: str, actions: tuple[str, ...], where: tuple[str, ...]
) -> Property:
    """Return the property that these actions are never allowed."""
    return Property(
        name=name,
        description=description,
        sense=Sense.ONLY_IF,
        cases=(PropertyCase(actions=actions, where=where),),
    )


def only_if(
    name: str,
    description: str,
    actions: tuple[str, ...],
    where: tuple[str, ...],
    *conditions: Condition,
) -> Property:
    """Return the property that every allowed request meets these conditions."""
    case = PropertyCase(actions=actions, where=where, conditions=conditions)
    return Property(name=name, description=description, sense=Sense.ONLY_IF, cases=(case,))


def encryption_conditions(settings: Settings) -> tuple[Condition, ...]:
    """Return the encryption of a put: none named, or the one in the settings."""
    kms = settings.encryption.mode == "sse-kms"
    key = absent_or(SSE_KEY, settings.encryption.kms_key) if kms else ()
    return (*absent_or(SSE, "aws:kms" if kms else "AES256"), absent(SSE_CUSTOMER), *key)


def transport_conditions(settings: Settings, role: RoleName | None = None) -> tuple[Condition, ...]:
    """Return the transport of a request: TLS, and the endpoint unless the deployer sends it."""
    tls = (equals(TLS, "true"),) if settings.network.require_tls else ()
    endpoint = "" if role is RoleName.DEPLOYER else settings.network.vpc_endpoint
    return (*tls, *((equals(ENDPOINT, endpoint),) if endpoint else ()))
