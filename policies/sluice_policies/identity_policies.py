"""One identity policy per role: the rights of the access matrix, and nothing else."""

from collections.abc import Iterator

from sluice_policies.access_matrix import ACTIONS, BUCKET_READS, LISTING, MATRIX, Rights, Verb
from sluice_policies.catalogue import inspecting_actions, reconfiguring_actions
from sluice_policies.model import Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.settings import RoleName, Settings, bucket_arn, objects_arns

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
