"""Properties of the documents: each is written once, independently of the statements.

A property is a list of cases. A case covers all requests of some actions in some range of keys:

- `ONLY_IF`: every allowed request meets the conditions; if `conditions` is None, none is allowed.
  Every caller is assumed to be an administrator of the account, unless the case is about the
  policy of one role.
- `CAN`: every request that meets the conditions is allowed.
- `GRANTED_ONLY_IF`: every request that a statement allows meets the conditions, even if another
  statement denies it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice_policies.bucket_policy import (
    ENDPOINT,
    IS_SERVICE,
    PRINCIPAL_ACCOUNT,
    SOURCE_ACCOUNT,
    SSE,
    SSE_CUSTOMER,
    SSE_KEY,
    TLS,
)
from sluice_policies.model import Condition
from sluice_policies.settings import RoleName, Settings

Ways = tuple[tuple[Condition, ...], ...]
"""Alternatives: a request meets all conditions of one of them."""

CALLER: Final = "sluice:caller"
"""The caller, as the store names it, in the conditions of a property."""


class Sense(Enum):
    """The direction of a property."""

    ONLY_IF = "only if"
    CAN = "can"
    GRANTED_ONLY_IF = "granted only if"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyCase:
    """One case of a property.

    Attributes:
        where: Patterns of the object ARN; empty for actions on the bucket.
        outside: Whether the case covers every object that `where` does not match.
        conditions: None for "never allowed".
        ways: Alternatives, one of which must be met as well; empty without any.
        role: The role whose policy is evaluated; None for any caller, in the worst case.
    """

    actions: tuple[str, ...]
    where: tuple[str, ...] = ()
    outside: bool = False
    conditions: tuple[Condition, ...] | None = None
    ways: Ways = ()
    role: RoleName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A property that the documents must have; all of its cases must be true."""

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


def encryption_ways(settings: Settings) -> Ways:
    """Return how a put may name its encryption.

    Without a header the bucket's default applies. With `aws:kms` and no key, S3 would use the AWS
    managed key `aws/s3` (Amazon S3 API Reference, PutObject, x-amz-server-side-encryption-aws-kms-
    key-id). A key without `aws:kms` is an error on S3; it is accepted if it is the configured one.
    """
    if settings.encryption.mode != "sse-kms":
        return ((*absent_or(SSE, "AES256"), absent(SSE_CUSTOMER), absent(SSE_KEY)),)
    key = settings.encryption.kms_key
    return (
        (absent(SSE), *absent_or(SSE_KEY, key), absent(SSE_CUSTOMER)),
        (equals(SSE, "aws:kms"), equals(SSE_KEY, key), absent(SSE_CUSTOMER)),
    )


def own_account_ways(settings: Settings) -> Ways:
    """Return the callers of the bucket's account: its principals, and services acting for it."""
    account = settings.bucket.account
    return (
        (equals(PRINCIPAL_ACCOUNT, account), equals(IS_SERVICE, "false")),
        (equals(IS_SERVICE, "true"), equals(SOURCE_ACCOUNT, account)),
    )


def combined(one: Ways, other: Ways) -> Ways:
    """Return the alternatives that meet one of each."""
    return tuple((*a, *b) for a in one for b in other)


def transport_conditions(settings: Settings, role: RoleName | None = None) -> tuple[Condition, ...]:
    """Return the transport of a request: TLS, and the endpoint unless the deployer sends it."""
    tls = (equals(TLS, "true"),) if settings.network.require_tls else ()
    endpoint = "" if role is RoleName.DEPLOYER else settings.network.vpc_endpoint
    return (*tls, *((equals(ENDPOINT, endpoint),) if endpoint else ()))
