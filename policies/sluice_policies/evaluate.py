"""The simulator: it evaluates one concrete request exactly as IAM does, or raises an error.

It decides the operators that sluice renders (`OPERATORS`) and no other. An explicit denial wins.
Otherwise, within one account, either the bucket's policy or the caller's own policy may allow.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from sluice_policies.catalogue import ResourceType, catalogue
from sluice_policies.errors import BadDocument, UnsupportedPolicy
from sluice_policies.model import EVERYONE, Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import RoleName, Target, bucket_arn, object_arn

HEADER_KEYS: Final = {
    "if-none-match": "s3:if-none-match",
    "if-match": "s3:if-match",
    "x-amz-copy-source": "s3:x-amz-copy-source",
    "x-amz-acl": "s3:x-amz-acl",
    "x-amz-server-side-encryption": "s3:x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id": (
        "s3:x-amz-server-side-encryption-aws-kms-key-id"
    ),
    "x-amz-server-side-encryption-customer-algorithm": (
        "s3:x-amz-server-side-encryption-customer-algorithm"
    ),
}
"""The headers that S3 turns into condition keys, as far as a statement of sluice uses them."""

OPERATORS: Final = (
    "StringEquals",
    "StringNotEquals",
    "StringLike",
    "StringNotLike",
    "StringLikeIfExists",
    "Bool",
    "Null",
)
"""Every operator that the simulator and the prover decide."""

ASSUMED_ADMIN: Final = "(assumed: the account allows this caller everything)"
NOTHING_ALLOWS: Final = "(no statement allows it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """One call, as a policy sees it.

    Attributes:
        caller: The ARN of the caller's role (the user name on versitygw), or None if anonymous.
        action: For example `s3:PutObject`.
        resource: The ARN of the bucket or object.
        context: Condition keys in lower case, except the caller's own ARN.
    """

    caller: str | None
    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str, target: Target) -> str | None:
        """Return the value of a condition key, or None if the request does not have it."""
        if key.lower() == "aws:principalarn":
            return self.caller if target is Target.AWS else None
        return self.context.get(key.lower())


def known_action(name: str) -> str:
    """Return an action's name as the catalogue spells it.

    Raises:
        BadDocument: The catalogue has no such action on a bucket or object.
    """
    found = catalogue().actions.get(name.lower())
    if found is None:
        raise BadDocument(name, "no such action on a bucket or object; see `sluice policies lint`")
    return found.name


def _context(action: str, headers: Mapping[str, str], *, tls: bool) -> dict[str, str]:
    context = {"aws:securetransport": "true" if tls else "false"}
    for header, value in headers.items():
        context[HEADER_KEYS.get(header.lower(), header).lower()] = value
    if action == "s3:PutObject":
        context.setdefault("s3:objectcreationoperation", "true")
    return context


def request_for(
    policies: PolicySet,
    principal: str,
    action: str,
    key: str | None,
    headers: Mapping[str, str],
) -> PolicyRequest:
    """Return the request for a principal and an action as an operator names them.

    Args:
        policies: The documents; they supply the bucket, the prefix and the principals of roles.
        principal: A role (`gateway`), an ARN or user name, or `anonymous`.
        action: `s3:PutObject`, with or without `s3:`.
        key: The object, relative to the deployment's prefix; None for the bucket.
        headers: HTTP headers, or condition keys by their own names.

    Raises:
        BadDocument: The action is unknown.
    """
    name = known_action(action if ":" in action else f"s3:{action}")
    roles = {role.value: policies.principal_of(role) for role in RoleName}
    known = catalogue().actions[name.lower()]
    on_bucket = key is None or known.resource_type is ResourceType.BUCKET
    settings = policies.settings
    context = _context(name, headers, tls=headers.get("aws:SecureTransport", "true") == "true")
    if settings.network.vpc_endpoint:
        context.setdefault("aws:sourcevpce", settings.network.vpc_endpoint)
    return PolicyRequest(
        caller=None if principal == "anonymous" else roles.get(principal, principal),
        action=name,
        resource=bucket_arn(settings) if on_bucket else object_arn(settings, key or ""),
        context=context,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The decision of the store.

    Attributes:
        allowed: Whether the request is allowed.
        sid: The deciding statement, or a remark in brackets.
        reason: The reason of that statement.
    """

    allowed: bool
    sid: str
    reason: str = ""


@cache
def _pattern(glob: str, *, ignore_case: bool) -> re.Pattern[str]:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in glob)
    return re.compile("".join(parts), re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def glob_matches(glob: str, text: str, *, ignore_case: bool = False) -> bool:
    """Return True if an IAM pattern matches; `*` and `?` also match `/`."""
    return _pattern(glob, ignore_case=ignore_case).fullmatch(text) is not None


def check_supported(statement: PolicyStatement) -> None:
    """Raise if a statement cannot be decided exactly.

    Raises:
        UnsupportedPolicy: It has another operator, a policy variable, or a principal pattern.
    """
    for condition in statement.conditions:
        if condition.operator not in OPERATORS:
            raise UnsupportedPolicy(statement.sid, condition.operator)
        if condition.operator in ("Bool", "Null") and set(condition.values) - {"true", "false"}:
            raise UnsupportedPolicy(statement.sid, f"{condition.operator} {condition.values}")
    texts = (*statement.resources, *(v for c in statement.conditions for v in c.values))
    for text in texts:
        if "${" in text:
            raise UnsupportedPolicy(statement.sid, text)
    for principal in statement.principals or ():
        if statement.principals != EVERYONE and ("*" in principal or principal.endswith(":root")):
            raise UnsupportedPolicy(statement.sid, f"Principal {principal}")


def _values_match(condition: Condition, value: str) -> bool:
    match condition.operator:
        case "StringEquals":
            return value in condition.values
        case "StringNotEquals":
            return value not in condition.values
        case "StringLike" | "StringLikeIfExists":
            return any(glob_matches(glob, value) for glob in condition.values)
        case "StringNotLike":
            return not any(glob_matches(glob, value) for glob in condition.values)
        case "Bool":
            return value.lower() in condition.values
        case _:
            raise UnsupportedPolicy(condition.key, condition.operator)


def condition_holds(condition: Condition, value: str | None) -> bool:
    """Return True if a condition is met; an absent key meets negated operators and IfExists.

    Raises:
        UnsupportedPolicy: The operator is not one of `OPERATORS`.
    """
    if condition.operator == "Null":
        return ("true" if value is None else "false") in condition.values
    if condition.operator not in OPERATORS:
        raise UnsupportedPolicy(condition.key, condition.operator)
    if value is None:
        return condition.operator in ("StringNotEquals", "StringNotLike", "StringLikeIfExists")
    return _values_match(condition, value)


def statement_matches(statement: PolicyStatement, request: PolicyRequest, target: Target) -> bool:
    """Return True if a statement applies to a request."""
    check_supported(statement)
    principals = statement.principals
    return (
        (principals is None or principals == EVERYONE or request.caller in principals)
        and any(glob_matches(a, request.action, ignore_case=True) for a in statement.actions)
        and any(glob_matches(resource, request.resource) for resource in statement.resources)
        and all(condition_holds(c, request.value(c.key, target)) for c in statement.conditions)
    )


def _identity_of(policies: PolicySet, caller: str | None) -> tuple[Document, ...]:
    named = {
        policies.principal_of(name): document for name, document in policies.identities.items()
    }
    return (named[caller],) if caller in named else ()


def evaluate(
    policies: PolicySet, request: PolicyRequest, *, others_are_admin: bool = True
) -> Evaluation:
    """Decide whether a request is allowed.

    Args:
        policies: The documents.
        request: The call.
        others_are_admin: Whether the account allows everything to a caller without a role here,
            which
            is the worst case. No effect on versitygw, whose users have no policies.

    Raises:
        UnsupportedPolicy: A document contains an element that is not decided here.
    """
    mine = _identity_of(policies, request.caller)
    documents = (policies.bucket, *mine)
    target = policies.target
    hits = [
        statement
        for document in documents
        for statement in document.statements
        if statement_matches(statement, request, target)
    ]
    for effect in (PolicyEffect.DENY, PolicyEffect.ALLOW):
        for statement in hits:
            if statement.effect is effect:
                allowed = effect is PolicyEffect.ALLOW
                return Evaluation(allowed=allowed, sid=statement.sid, reason=statement.reason)
    stranger = request.caller is not None and not mine
    if stranger and others_are_admin and target is Target.AWS:
        return Evaluation(allowed=True, sid=ASSUMED_ADMIN)
    return Evaluation(allowed=False, sid=NOTHING_ALLOWS)
