"""What must hold of the documents, each thing said once, apart from how statements say it.

A property is a list of cases over all requests of some actions in some region of keys:

- `ONLY_IF`: every request that gets through satisfies the conditions (none at all when
  `conditions` is None). Judged in the worst case, every caller being an administrator of the
  account, unless the case is about one role by its own policy.
- `CAN`: every request that satisfies the conditions gets through.
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
    """What a case says."""

    ONLY_IF = "only if"
    CAN = "can"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyCase:
    """One sentence of a property.

    Attributes:
        actions: The actions, by name.
        where: Patterns of the object ARN; empty for actions on the bucket.
        outside: Whether the case is about every object that `where` does not match.
        conditions: What must hold; None for "never".
        role: The role whose own policy is judged; None for anyone, in the worst case.
    """

    actions: tuple[str, ...]
    where: tuple[str, ...] = ()
    outside: bool = False
    conditions: tuple[Condition, ...] | None = None
    role: RoleName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One thing that must hold.

    Attributes:
        name: Its name in reports and in `docs/policies.md`.
        says: What it says, for people.
        sense: Which way it says it.
        cases: All must hold.
    """

    name: str
    says: str
    sense: Sense
    cases: tuple[PropertyCase, ...]


def equals(key: str, *values: str) -> Condition:
    """Gives the condition that a key has one of these values."""
    return Condition(operator="StringEquals", key=key, values=values)


def absent(key: str) -> Condition:
    """Gives the condition that a request does not have a key."""
    return Condition(operator="Null", key=key, values=("true",))


def absent_or(key: str, value: str) -> tuple[Condition, ...]:
    """Gives conditions satisfied by a missing key or this one value.

    The pattern is the value itself: what is compared here holds no wildcard of IAM.
    """
    return (Condition(operator="StringLikeIfExists", key=key, values=(value,)),)


def never(name: str, says: str, actions: tuple[str, ...], where: tuple[str, ...]) -> Property:
    """Gives the property that nobody ever does this."""
    return Property(
        name=name,
        says=says,
        sense=Sense.ONLY_IF,
        cases=(PropertyCase(actions=actions, where=where),),
    )


def only_if(
    name: str,
    says: str,
    actions: tuple[str, ...],
    where: tuple[str, ...],
    *conditions: Condition,
) -> Property:
    """Gives the property that whatever gets through satisfies these conditions."""
    case = PropertyCase(actions=actions, where=where, conditions=conditions)
    return Property(name=name, says=says, sense=Sense.ONLY_IF, cases=(case,))


def encryption_conditions(settings: Settings) -> tuple[Condition, ...]:
    """Gives what a put must say of encryption: nothing, or what the settings say."""
    kms = settings.encryption.mode == "sse-kms"
    key = absent_or(SSE_KEY, settings.encryption.kms_key) if kms else ()
    return (*absent_or(SSE, "aws:kms" if kms else "AES256"), absent(SSE_CUSTOMER), *key)


def transport_conditions(settings: Settings, role: RoleName | None = None) -> tuple[Condition, ...]:
    """Gives what every request must bring: TLS, and the endpoint unless the deployer sends it."""
    tls = (equals(TLS, "true"),) if settings.network.require_tls else ()
    endpoint = "" if role is RoleName.DEPLOYER else settings.network.vpc_endpoint
    return (*tls, *((equals(ENDPOINT, endpoint),) if endpoint else ()))
