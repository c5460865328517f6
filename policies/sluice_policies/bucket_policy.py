"""The bucket policy for AWS: it only denies, so that no other grant can undo its rules.

A negated condition also matches when its key is absent. "Without the header" therefore covers
multipart uploads, form posts and copies, none of which send it. What a role may do is granted by
its identity policy (`policy_set`).
"""

from collections.abc import Iterator

from sluice_policies.access_matrix import (
    CREATE_ONLY,
    DELETING,
    EVIDENCE,
    GUARDED_WRITES,
    LOCKS,
    NEVER_DELETED,
    RECORDED_DECISIONS,
    REENCRYPTING,
    REWRITING,
    writers,
)
from sluice_policies.catalogue import reconfiguring_actions
from sluice_policies.model import EVERYONE, Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.settings import RoleName, Settings, bucket_arn, objects_arn, objects_arns
from sluice_protocol import keys

SSE = "s3:x-amz-server-side-encryption"
SSE_KEY = "s3:x-amz-server-side-encryption-aws-kms-key-id"
SSE_CUSTOMER = "s3:x-amz-server-side-encryption-customer-algorithm"
COPY_SOURCE = "s3:x-amz-copy-source"
IF_NONE_MATCH = "s3:if-none-match"
CREATES = "s3:ObjectCreationOperation"
PRINCIPAL = "aws:PrincipalArn"
PRINCIPAL_ACCOUNT = "aws:PrincipalAccount"
IS_SERVICE = "aws:PrincipalIsAWSService"
SOURCE_ACCOUNT = "aws:SourceAccount"
TLS = "aws:SecureTransport"
ENDPOINT = "aws:SourceVpce"


def _deny(
    sid: str,
    reason: str,
    actions: tuple[str, ...],
    resources: tuple[str, ...],
    *conditions: Condition,
) -> PolicyStatement:
    return PolicyStatement(
        sid=sid,
        effect=PolicyEffect.DENY,
        principals=EVERYONE,
        actions=actions,
        resources=resources,
        conditions=conditions,
        reason=reason,
    )


def _is_not(key: str, *values: str) -> Condition:
    return Condition(operator="StringNotEquals", key=key, values=values)


def _sent(key: str) -> Condition:
    return Condition(operator="Null", key=key, values=("false",))


def _bool(key: str, value: str) -> Condition:
    return Condition(operator="Bool", key=key, values=(value,))


def _absent(key: str) -> Condition:
    return Condition(operator="Null", key=key, values=("true",))


def _others_than(settings: Settings, *names: RoleName) -> Condition:
    return _is_not(PRINCIPAL, *(settings.role(name).arn for name in names))


def _transport(settings: Settings) -> Iterator[PolicyStatement]:
    whole = (bucket_arn(settings), f"{bucket_arn(settings)}/*")
    if settings.network.require_tls:
        yield _deny(
            "TlsOnly",
            "an unencrypted request exposes its content and can be modified in transit",
            ("s3:*",),
            whole,
            _bool(TLS, "false"),
        )
    if settings.network.vpc_endpoint:
        yield _deny(
            "EndpointOnly",
            "stolen credentials are useless outside the network; the deployer is exempt, because "
            "a wrong endpoint id would lock out every role",
            ("s3:*",),
            whole,
            _is_not(ENDPOINT, settings.network.vpc_endpoint),
            _others_than(settings, RoleName.DEPLOYER),
        )


def _strangers(settings: Settings) -> Iterator[PolicyStatement]:
    whole = (bucket_arn(settings), f"{bucket_arn(settings)}/*")
    account = settings.bucket.account
    yield _deny(
        "OwnAccountOnly",
        "every role is in the account of the bucket: a statement that grants access to another "
        "account or to everyone is a mistake; an anonymous request has no aws:PrincipalIsAWSService"
        ", hence IfExists",
        ("s3:*",),
        whole,
        _is_not(PRINCIPAL_ACCOUNT, account),
        Condition(operator="BoolIfExists", key=IS_SERVICE, values=("false",)),
    )
    yield _deny(
        "ServicesOfOwnAccountOnly",
        "an AWS service can be made to act for another account (confused deputy); it names the "
        "account for which it acts in aws:SourceAccount",
        ("s3:*",),
        whole,
        _bool(IS_SERVICE, "true"),
        _is_not(SOURCE_ACCOUNT, account),
    )


def _creation(settings: Settings) -> Iterator[PolicyStatement]:
    yield _deny(
        "CreateOnly",
        "one identity has one decision: a record that could be written twice would allow two "
        "different batches to be accepted under one identity; a request without the header is "
        "denied too",
        ("s3:PutObject",),
        objects_arns(settings, RECORDED_DECISIONS),
        _is_not(IF_NONE_MATCH, "*"),
    )
    if settings.raw_blobs.require_if_none_match:
        yield _deny(
            "CreateOnlyBlobs",
            "a blob is written once; the cost is that a gateway cannot refresh an old orphan",
            ("s3:PutObject",),
            objects_arns(settings, (keys.RAW_BLOBS,)),
            _is_not(IF_NONE_MATCH, "*"),
        )
    yield _deny(
        "CreateOnlyJournals",
        "a journal object that could be written twice, with fewer entries or a later time, would "
        "let an answer claim to contain batches that are missing",
        ("s3:PutObject",),
        objects_arns(settings, (keys.GATEWAYS,)),
        _is_not(IF_NONE_MATCH, "*"),
    )
    whole = objects_arns(settings, (*CREATE_ONLY, keys.RAW_BLOBS))
    yield _deny(
        "NoCopyInto",
        "a copy stores bytes that no gateway validated, and not every server honours the "
        "conditional header of a copy",
        ("s3:PutObject",),
        whole,
        _sent(COPY_SOURCE),
    )
    yield _deny(
        "NoMultipartInto",
        "blobs and records are single puts with a checksum of all their bytes; copied parts "
        "would bypass the rule on copies",
        ("s3:PutObject",),
        whole,
        _bool(CREATES, "false"),
    )


def _deletion(settings: Settings) -> Iterator[PolicyStatement]:
    evidence = objects_arns(settings, EVIDENCE)
    blobs = objects_arns(settings, (keys.RAW_BLOBS,))
    yield _deny(
        "NeverHiddenOrReplaced",
        "a delete marker makes an identity available again, a replicated tag or owner changes the "
        "object, an ACL exposes it",
        REWRITING,
        (*evidence, *blobs),
    )
    yield _deny(
        "NeverDeleted",
        "decisions and evidence are permanent: deleting a manifest makes its identity available "
        "again",
        ("s3:DeleteObjectVersion",),
        objects_arns(settings, NEVER_DELETED),
    )
    yield _deny(
        "ReferencesByReconcilerAlone",
        "the reference of an expired batch ends after its blob; the role that deletes blobs cannot "
        "remove a reference that keeps one",
        ("s3:DeleteObjectVersion",),
        objects_arns(settings, (keys.ACCEPTED_BY_BLOB,)),
        _others_than(settings, RoleName.RECONCILER),
    )
    yield _deny(
        "BlobVersionsByGcAlone",
        "only the gc role proves that no manifest names a blob before it deletes that version",
        ("s3:DeleteObjectVersion",),
        blobs,
        _others_than(settings, RoleName.GC),
    )
    yield _deny(
        "JournalsDeletedByReconcilerAlone",
        "without its registration or journal, a gateway process no longer holds back the time "
        "through which answers are complete",
        DELETING,
        objects_arns(settings, (keys.GATEWAYS,)),
        _others_than(settings, RoleName.RECONCILER),
    )
    yield _deny(
        "NoLocksByHand",
        "a bypass would make the lock ineffective, and a legal hold or a long retention would "
        "block GC permanently; the bucket's own retention needs none of these rights",
        LOCKS,
        (objects_arn(settings),),
    )


def _encryption(settings: Settings) -> Iterator[PolicyStatement]:
    everything = (objects_arn(settings),)
    kms = settings.encryption.mode == "sse-kms"
    yield _deny(
        "NoOtherEncryption",
        "the bucket's default encrypts objects that name no encryption; another encryption would "
        "bypass it (only a header that is present is denied: without one the default applies)",
        ("s3:PutObject",),
        everything,
        _is_not(SSE, "aws:kms" if kms else "AES256"),
        _sent(SSE),
    )
    yield _deny(
        "NoCustomerKeys",
        "an object under a key that only its writer has is lost with the writer",
        ("s3:PutObject",),
        everything,
        _sent(SSE_CUSTOMER),
    )
    if kms:
        yield _deny(
            "NoOtherKey",
            "an object under another key is lost when that key is deleted",
            ("s3:PutObject",),
            everything,
            _is_not(SSE_KEY, settings.encryption.kms_key),
            _sent(SSE_KEY),
        )
        yield _deny(
            "NoUnnamedKey",
            "S3 encrypts a request that names aws:kms and no key with the AWS managed key aws/s3, "
            "not with the key of the bucket's default",
            ("s3:PutObject",),
            everything,
            _sent(SSE),
            _absent(SSE_KEY),
        )
    else:
        yield _deny(
            "NoOtherKey",
            "an object under a KMS key is lost when that key is deleted",
            ("s3:PutObject",),
            everything,
            _sent(SSE_KEY),
        )
    yield _deny(
        "NeverReencrypted",
        "a replica keeps the encryption of its source, and an update of the encryption chooses "
        "another key; both also replace the object",
        REENCRYPTING,
        everything,
    )


def _writers(settings: Settings) -> Iterator[PolicyStatement]:
    groups: dict[tuple[RoleName, ...], list[str]] = {}
    for prefix in GUARDED_WRITES:
        groups.setdefault(writers(prefix), []).append(prefix)
    for names, prefixes in groups.items():
        yield _deny(
            "WritersOf" + "And".join(name.value.title() for name in names),
            f"only {', '.join(name.value for name in names)} may write here, whatever else an "
            f"administrator of the account is allowed to do",
            ("s3:PutObject",),
            objects_arns(settings, tuple(prefixes)),
            _others_than(settings, *names),
        )


def bucket_policy(settings: Settings) -> Document:
    """Return the bucket policy for AWS."""
    reconfigure = _deny(
        "ReconfiguredByDeployerAlone",
        "a principal that can change policy, lifecycle, versioning, replication or lock can "
        "disable every rule here; a lifecycle deletes objects without any policy check",
        reconfiguring_actions(),
        (bucket_arn(settings),),
        _others_than(settings, RoleName.DEPLOYER),
    )
    return Document(
        statements=(
            *_transport(settings),
            *_strangers(settings),
            *_creation(settings),
            *_deletion(settings),
            *_encryption(settings),
            *_writers(settings),
            reconfigure,
        )
    )
