"""One request as a policy sees it: who, what, on which object, with which condition keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_policies.arns import bucket_arn, object_arn
from sluice_policies.catalogue import On, catalogue
from sluice_policies.errors import BadDocument
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import RoleName, Target

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
"""The headers that S3 turns into condition keys, as far as any statement of ours asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """One call.

    Attributes:
        who: The ARN of the caller's role (the user name on versitygw), or None for nobody.
        action: `s3:PutObject` say.
        resource: The ARN of the bucket or object.
        context: Condition keys, lower case, beside the caller's own ARN.
    """

    who: str | None
    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)

    def value(self, key: str, target: Target) -> str | None:
        """Gives the value of a condition key, or None where the request has none."""
        if key.lower() == "aws:principalarn":
            return self.who if target is Target.AWS else None
        return self.context.get(key.lower())


def known_action(name: str) -> str:
    """Gives an action's name as the catalogue spells it.

    Raises:
        BadDocument: The catalogue has no such action on a bucket or object.
    """
    found = catalogue().actions.get(name.lower())
    if found is None:
        raise BadDocument(name, "no such action on a bucket or object; see `lint`")
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
    """Makes a request as people name it.

    Args:
        policies: What it will be judged by; gives bucket, prefix and the names of roles.
        principal: A role (`gateway`), an ARN or user name, or `anonymous`.
        action: `s3:PutObject`, with or without `s3:`.
        key: The object, relative to the deployment's prefix; None for the bucket.
        headers: HTTP headers, or condition keys by their own names.

    Raises:
        BadDocument: The action is unknown.
    """
    name = known_action(action if ":" in action else f"s3:{action}")
    roles = {role.value: policies.who(role) for role in RoleName}
    known = catalogue().actions[name.lower()]
    on_bucket = key is None or known.on is On.BUCKET
    settings = policies.settings
    context = _context(name, headers, tls=headers.get("aws:SecureTransport", "true") == "true")
    if settings.network.vpc_endpoint:
        context.setdefault("aws:sourcevpce", settings.network.vpc_endpoint)
    return PolicyRequest(
        who=None if principal == "anonymous" else roles.get(principal, principal),
        action=name,
        resource=bucket_arn(settings) if on_bucket else object_arn(settings, key or ""),
        context=context,
    )
