"""The simulator: it evaluates one concrete request exactly as IAM does, or raises an error.

It decides the operators that sluice renders (`OPERATORS`) and no other. An explicit denial wins.
Otherwise, within one account, either the bucket's policy or the caller's own policy may allow. A
principal of another account, an anonymous caller or an AWS service needs a statement of the bucket
policy.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from sluice_policies.catalogue import ResourceType, catalogue
from sluice_policies.errors import BadDocument, UnsupportedPolicy
from sluice_policies.model import Condition, Document, PolicyEffect, PolicyStatement
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
    "StringEqualsIfExists",
    "StringNotEqualsIfExists",
    "StringLikeIfExists",
    "StringNotLikeIfExists",
    "Bool",
    "BoolIfExists",
    "Null",
)
"""Every operator that the simulator and the prover decide."""

PRINCIPAL_ACCOUNT: Final = "aws:principalaccount"
PRINCIPAL_IS_SERVICE: Final = "aws:principalisawsservice"
SERVICE_NAME: Final = "aws:principalservicename"
ANONYMOUS: Final = "anonymous"

_SERVICE: Final = re.compile(r"[a-z0-9.-]+\.amazonaws\.com(\.cn)?")
_WHOLE_ACCOUNT: Final = re.compile(r"(?:arn:[^:]+:iam::)?(\d{12})(?::root)?")
_NEGATED: Final = ("StringNotEquals", "StringNotLike")

ASSUMED_ADMIN: Final = "(assumed: the account allows this caller everything)"
NOTHING_ALLOWS: Final = "(no statement allows it)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """One call, as a policy sees it.

    Attributes:
        caller: The ARN of the role or user (the user name on versitygw); None if anonymous or an
            AWS service.
        context: In lower case, without the caller's own ARN.
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
    """Return an action's name as the catalogue spells it, or raise `BadDocument`."""
    found = catalogue().actions.get(name.lower())
    if found is None:
        raise BadDocument(name, "no such action on a bucket or object; see `sluice policies lint`")
    return found.name


def account_of(arn: str) -> str:
    """Return the account in an ARN, or an empty text."""
    parts = arn.split(":", 5)
    return parts[4] if len(parts) > 5 else ""  # noqa: PLR2004 - an ARN has six parts


def whole_account(principal: str) -> str | None:
    """Return the account if a principal names a whole account, by its number or its root."""
    found = _WHOLE_ACCOUNT.fullmatch(principal)
    return None if found is None else found[1]


def _principal_keys(caller: str, target: Target) -> dict[str, str]:
    """Return the condition keys that AWS derives from the principal of a request."""
    if target is not Target.AWS or caller == ANONYMOUS:
        return {}
    if _SERVICE.fullmatch(caller):
        return {SERVICE_NAME: caller, PRINCIPAL_IS_SERVICE: "true"}
    return {PRINCIPAL_ACCOUNT: account_of(caller), PRINCIPAL_IS_SERVICE: "false"}


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

    A principal is a role (`gateway`), an ARN or user name, a service (`s3.amazonaws.com`), or
    `anonymous`. The action may be without `s3:`. The key is relative to the deployment's prefix;
    None for the bucket. Headers may also be condition keys by their own names.
    """
    name = known_action(action if ":" in action else f"s3:{action}")
    roles = {role.value: policies.principal_of(role) for role in RoleName}
    known = catalogue().actions[name.lower()]
    on_bucket = key is None or known.resource_type is ResourceType.BUCKET
    settings = policies.settings
    context = _context(name, headers, tls=headers.get("aws:SecureTransport", "true") == "true")
    if settings.network.vpc_endpoint:
        context.setdefault("aws:sourcevpce", settings.network.vpc_endpoint)
    caller = roles.get(principal, principal)
    context = _principal_keys(caller, policies.target) | context
    service = policies.target is Target.AWS and _SERVICE.fullmatch(caller) is not None
    return PolicyRequest(
        caller=None if caller == ANONYMOUS or service else caller,
        action=name,
        resource=bucket_arn(settings) if on_bucket else object_arn(settings, key or ""),
        context=context,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """The decision of the store, and the deciding statement or a remark in brackets."""

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
    """Raise `UnsupportedPolicy` if a statement cannot be decided exactly.

    It has another operator, a policy variable, a principal pattern, or a session of a role as its
    principal.
    """
    for condition in statement.conditions:
        if condition.operator not in OPERATORS:
            raise UnsupportedPolicy(statement.sid, condition.operator)
        if condition.operator in ("Bool", "BoolIfExists", "Null") and set(condition.values) - {
            "true",
            "false",
        }:
            raise UnsupportedPolicy(statement.sid, f"{condition.operator} {condition.values}")
    texts = (*statement.resources, *(v for c in statement.conditions for v in c.values))
    variable = next((text for text in texts if "${" in text), None)
    if variable is not None:
        raise UnsupportedPolicy(statement.sid, variable)
    for principal in () if statement.for_anyone else statement.principals or ():
        if "*" in principal or ":assumed-role/" in principal:
            raise UnsupportedPolicy(statement.sid, f"Principal {principal}")


def check_principals(policies: PolicySet) -> None:
    """Raise `UnsupportedPolicy` if a statement names the bucket's account as its principal.

    Such a grant takes effect only together with the policy of each caller.
    """
    account = policies.settings.bucket.account
    for statement in policies.bucket.statements if policies.target is Target.AWS else ():
        for principal in statement.principals or ():
            if whole_account(principal) == account:
                raise UnsupportedPolicy(statement.sid, f"Principal {principal}")


def _values_match(condition: Condition, value: str) -> bool:
    match condition.operator.removesuffix("IfExists"):
        case "StringEquals":
            return value in condition.values
        case "StringNotEquals":
            return value not in condition.values
        case "StringLike":
            return any(glob_matches(glob, value) for glob in condition.values)
        case "StringNotLike":
            return not any(glob_matches(glob, value) for glob in condition.values)
        case "Bool":
            return value.lower() in condition.values
        case _:
            raise UnsupportedPolicy(condition.key, condition.operator)


def condition_holds(condition: Condition, value: str | None) -> bool:
    """Return True if a condition is met; an absent key meets negated operators and IfExists."""
    if condition.operator == "Null":
        return ("true" if value is None else "false") in condition.values
    if condition.operator not in OPERATORS:
        raise UnsupportedPolicy(condition.key, condition.operator)
    if value is None:
        return condition.operator.endswith("IfExists") or condition.operator in _NEGATED
    return _values_match(condition, value)


def _principal_matches(statement: PolicyStatement, request: PolicyRequest, target: Target) -> bool:
    if statement.for_anyone:
        return True
    service = request.value(SERVICE_NAME, target)
    if service is not None and target is Target.AWS:
        return service in statement.services
    account = request.value(PRINCIPAL_ACCOUNT, target)
    return any(
        account == whole_account(name)
        if target is Target.AWS and whole_account(name)
        else request.caller == name
        for name in statement.principals or ()
    )


def statement_matches(statement: PolicyStatement, request: PolicyRequest, target: Target) -> bool:
    """Return True if a statement applies to a request."""
    check_supported(statement)
    return (
        _principal_matches(statement, request, target)
        and any(glob_matches(a, request.action, ignore_case=True) for a in statement.actions)
        and any(glob_matches(resource, request.resource) for resource in statement.resources)
        and all(condition_holds(c, request.value(c.key, target)) for c in statement.conditions)
    )


def _identity_of(policies: PolicySet, caller: str | None) -> tuple[Document, ...]:
    named = {
        policies.principal_of(name): document for name, document in policies.identities.items()
    }
    return (named[caller],) if caller in named else ()


def evaluate(policies: PolicySet, request: PolicyRequest) -> PolicyDecision:
    """Decide whether a request is allowed.

    The account of the bucket allows everything to a caller without a role here, which is the worst
    case. It has no effect on versitygw, whose users have no policies.
    """
    check_principals(policies)
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
                return PolicyDecision(allowed=allowed, sid=statement.sid, reason=statement.reason)
    own = request.value(PRINCIPAL_ACCOUNT, target) == policies.settings.bucket.account
    other = own and request.caller is not None and not mine
    if other and target is Target.AWS:
        return PolicyDecision(allowed=True, sid=ASSUMED_ADMIN)
    return PolicyDecision(allowed=False, sid=NOTHING_ALLOWS)
