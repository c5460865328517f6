"""All documents that decide about requests to one bucket: its policy and one policy per role.

The policy of a role grants the rights of the access matrix, and nothing else. Users of versitygw
1.8 have no policies, so the bucket policy in its dialect grants each user the rights of its role,
and denies what can be denied without the condition keys that this server does not fill in.
`render.inexpressible` lists what cannot be expressed; the list is derived from the documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluice_policies.access_matrix import ACTIONS, BUCKET_READS, LISTING, MATRIX, Rights, Verb
from sluice_policies.bucket_policy import bucket_policy
from sluice_policies.catalogue import inspecting_actions, reconfiguring_actions
from sluice_policies.model import Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.settings import RoleName, Settings, Target, bucket_arn, objects_arns

_SIDS = {
    Verb.READ: "Read",
    Verb.WRITE: "Write",
    Verb.MULTIPART: "Multipart",
    Verb.DELETE: "Delete",
    Verb.DELETE_VERSION: "DeleteVersions",
}
_REASONS = {
    Verb.READ: "the objects that this role reads",
    Verb.WRITE: "the objects that this role writes",
    Verb.MULTIPART: "large files of the lake are uploaded in parts",
    Verb.DELETE: "the objects that this role deletes itself",
    Verb.DELETE_VERSION: "one exact version that was proved unused, never the whole key",
}


def _allow(
    sid: str,
    reason: str,
    actions: tuple[str, ...],
    resources: tuple[str, ...],
    *conditions: Condition,
) -> PolicyStatement:
    return PolicyStatement(
        sid=sid,
        effect=PolicyEffect.ALLOW,
        actions=actions,
        resources=resources,
        conditions=conditions,
        reason=reason,
    )


def listed_prefixes(settings: Settings, rights: Rights) -> tuple[str, ...]:
    """Return the patterns of `s3:prefix` that a role may list."""
    return tuple(f"{settings.bucket.prefix}{prefix}*" for prefix in rights.prefixes[Verb.READ])


def _objects(settings: Settings, rights: Rights) -> Iterator[PolicyStatement]:
    for verb, prefixes in rights.prefixes.items():
        places = objects_arns(settings, prefixes)
        yield _allow(_SIDS[verb], _REASONS[verb], ACTIONS[verb], places)


def _bucket(settings: Settings, rights: Rights) -> Iterator[PolicyStatement]:
    bucket = (bucket_arn(settings),)
    yield _allow(
        "List",
        "without it a missing key returns 403 and not 404; a read of a missing key sends no "
        "prefix, hence IfExists; as a consequence, key names can be listed without a prefix",
        LISTING,
        bucket,
        Condition(
            operator="StringLikeIfExists",
            key="s3:prefix",
            values=listed_prefixes(settings, rights),
        ),
    )
    looking = inspecting_actions() if rights.inspect else BUCKET_READS
    yield _allow("Look", "the region of the bucket and its versioning state", looking, bucket)
    if rights.configure:
        yield _allow(
            "Configure", "the deployer configures the bucket", reconfiguring_actions(), bucket
        )


def _key(settings: Settings, rights: Rights) -> Iterator[PolicyStatement]:
    if settings.encryption.mode != "sse-kms":
        return
    writes = ("kms:GenerateDataKey",) if Verb.WRITE in rights.prefixes else ()
    yield _allow(
        "UseKey",
        "objects are encrypted under this key",
        ("kms:Decrypt", *writes),
        (settings.encryption.kms_key,),
    )


def identity_policy(settings: Settings, name: RoleName) -> Document:
    """Return the identity policy of a role."""
    rights = MATRIX[name]
    return Document(
        statements=(
            *_objects(settings, rights),
            *_bucket(settings, rights),
            *_key(settings, rights),
        )
    )


KEYS: Final = frozenset(
    {"aws:sourceip", "aws:currenttime", "aws:epochtime", "aws:securetransport", "aws:useragent"}
    | {"aws:referer", "s3:prefix", "s3:delimiter", "s3:max-keys", "s3:x-amz-acl", "s3:versionid"}
)
"""The condition keys that the server fills in, lower case (auth/condition_context.go, v1.8.0)."""

VERSITYGW_ACTIONS: Final = frozenset(
    {
        "s3:AbortMultipartUpload",
        "s3:BypassGovernanceRetention",
        "s3:DeleteBucket",
        "s3:DeleteBucketPolicy",
        "s3:DeleteBucketWebsite",
        "s3:DeleteObject",
        "s3:DeleteObjectTagging",
        "s3:DeleteObjectVersion",
        "s3:DeleteObjectVersionTagging",
        "s3:GetAccelerateConfiguration",
        "s3:GetAnalyticsConfiguration",
        "s3:GetBucketAcl",
        "s3:GetBucketCORS",
        "s3:GetBucketLocation",
        "s3:GetBucketLogging",
        "s3:GetBucketNotification",
        "s3:GetBucketObjectLockConfiguration",
        "s3:GetBucketOwnershipControls",
        "s3:GetBucketPolicy",
        "s3:GetBucketPolicyStatus",
        "s3:GetBucketPublicAccessBlock",
        "s3:GetBucketRequestPayment",
        "s3:GetBucketTagging",
        "s3:GetBucketVersioning",
        "s3:GetBucketWebsite",
        "s3:GetEncryptionConfiguration",
        "s3:GetIntelligentTieringConfiguration",
        "s3:GetInventoryConfiguration",
        "s3:GetLifecycleConfiguration",
        "s3:GetMetricsConfiguration",
        "s3:GetObject",
        "s3:GetObjectAcl",
        "s3:GetObjectAttributes",
        "s3:GetObjectLegalHold",
        "s3:GetObjectRetention",
        "s3:GetObjectTagging",
        "s3:GetObjectVersion",
        "s3:GetObjectVersionAttributes",
        "s3:GetObjectVersionTagging",
        "s3:GetReplicationConfiguration",
        "s3:ListBucket",
        "s3:ListBucketMultipartUploads",
        "s3:ListBucketVersions",
        "s3:ListMultipartUploadParts",
        "s3:PutAccelerateConfiguration",
        "s3:PutAnalyticsConfiguration",
        "s3:PutBucketAcl",
        "s3:PutBucketCORS",
        "s3:PutBucketLogging",
        "s3:PutBucketNotification",
        "s3:PutBucketObjectLockConfiguration",
        "s3:PutBucketOwnershipControls",
        "s3:PutBucketPolicy",
        "s3:PutBucketPublicAccessBlock",
        "s3:PutBucketRequestPayment",
        "s3:PutBucketTagging",
        "s3:PutBucketVersioning",
        "s3:PutBucketWebsite",
        "s3:PutEncryptionConfiguration",
        "s3:PutIntelligentTieringConfiguration",
        "s3:PutInventoryConfiguration",
        "s3:PutLifecycleConfiguration",
        "s3:PutMetricsConfiguration",
        "s3:PutObject",
        "s3:PutObjectAcl",
        "s3:PutObjectLegalHold",
        "s3:PutObjectRetention",
        "s3:PutObjectTagging",
        "s3:PutObjectVersionTagging",
        "s3:PutReplicationConfiguration",
        "s3:RestoreObject",
    }
)
"""The actions that the server supports (auth/bucket_policy_actions.go, v1.8.0)."""


def known_actions(actions: tuple[str, ...]) -> tuple[str, ...]:
    """Return those actions that the server accepts in a policy."""
    return tuple(action for action in actions if action in VERSITYGW_ACTIONS or action == "s3:*")


def expressible(condition: Condition) -> bool:
    """Return True if the server can decide a condition."""
    return condition.key.lower() in KEYS


def _denials(settings: Settings) -> Iterator[PolicyStatement]:
    for statement in bucket_policy(settings).statements:
        actions = known_actions(statement.actions)
        if actions and all(expressible(condition) for condition in statement.conditions):
            yield replace(statement, actions=actions)


def _grants(settings: Settings) -> Iterator[PolicyStatement]:
    """Yield the rights of the roles; objects with the same rights of the same roles share one.

    The server limits the size of the document.
    """
    roles: dict[PolicyStatement, list[RoleName]] = {}
    for name in MATRIX:
        for statement in identity_policy(settings, name).statements:
            if actions := known_actions(statement.actions):
                for resource in statement.resources:
                    part = replace(statement, actions=actions, resources=(resource,))
                    roles.setdefault(part, []).append(name)
    groups: dict[tuple[object, ...], list[PolicyStatement]] = {}
    for part, names in roles.items():
        groups.setdefault((part.sid, part.actions, part.conditions, *names), []).append(part)
    for parts in groups.values():
        names = roles[parts[0]]
        yield replace(
            parts[0],
            sid="".join(name.value.title() for name in names) + parts[0].sid,
            effect=PolicyEffect.ALLOW,
            principals=tuple(settings.user(name) for name in names),
            resources=tuple(resource for one in parts for resource in one.resources),
        )


def versitygw_bucket_policy(settings: Settings) -> Document:
    """Return the bucket policy for versitygw."""
    return Document(statements=(*_denials(settings), *_grants(settings)))


def inexpressible_statements(settings: Settings) -> Iterator[tuple[PolicyStatement, str]]:
    """Yield every statement for AWS that this dialect drops or narrows, and the reason."""
    for statement in bucket_policy(settings).statements:
        keys = [c.key for c in statement.conditions if not expressible(c)]
        gone = [a for a in statement.actions if a not in known_actions(statement.actions)]
        if keys:
            yield statement, f"the server does not fill in {', '.join(sorted(set(keys)))}"
        elif gone:
            yield statement, f"the server does not support {', '.join(sorted(gone))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """The documents that decide, rendered from `settings` in the dialect of the target.

    `identities` is empty if the target has none.
    """

    settings: Settings
    target: Target
    bucket: Document
    identities: dict[RoleName, Document]

    def principal_of(self, name: RoleName) -> str:
        """Return the name of a role's principal on the target."""
        return self.settings.principal_of(name, self.target)

    def with_bucket(self, bucket: Document) -> "PolicySet":
        """Return a copy with another bucket policy."""
        return replace(self, bucket=bucket)

    def with_identity(self, name: RoleName, document: Document) -> "PolicySet":
        """Return a copy with another policy of one role."""
        return replace(self, identities={**self.identities, name: document})


def policy_set(settings: Settings, target: Target) -> PolicySet:
    """Return the documents that sluice renders for a target."""
    if target is Target.VERSITYGW:
        return PolicySet(
            settings=settings,
            target=target,
            bucket=versitygw_bucket_policy(settings),
            identities={},
        )
    return PolicySet(
        settings=settings,
        target=target,
        bucket=bucket_policy(settings),
        identities={name: identity_policy(settings, name) for name in RoleName},
    )
