"""The simulator names the deciding statement, and raises for what it does not decide."""

import json

import pytest
from support.policies_live import settings

from sluice_policies.errors import BadDocument, UnsupportedPolicy
from sluice_policies.evaluate import (
    ASSUMED_ADMIN,
    NOTHING_ALLOWS,
    condition_holds,
    evaluate,
    request_for,
)
from sluice_policies.model import Condition, parse_document
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.settings import Target

POLICIES = policy_set(settings(), Target.AWS)
CREATE = {"If-None-Match": "*"}
KEY = "accepted/v1/agent=61/boot=62/0-9.json"
DELETE = "deletes/v1/01K5N7W3M0000000000000000C.json"
REFERENCE = "accepted-by-blob/v1/sha256/ab/cd/abcd/agent=61/boot=62/0-9.json"
BLOB = "raw-blobs/v1/sha256/ab/cd/abcd.lmbatch"
ADMIN = "arn:aws:iam::111122223333:role/admin"
FOREIGNER = "arn:aws:iam::444455556666:role/partner"
SERVICE = "s3.amazonaws.com"
KMS = {"x-amz-server-side-encryption": "aws:kms"}
KEY_HEADER = "x-amz-server-side-encryption-aws-kms-key-id"
KEY_ARN = settings().encryption.kms_key


def for_account(account: str) -> dict[str, str]:
    return {"aws:SourceAccount": account}


def judge(
    who: str, action: str, key: str | None, headers: dict[str, str] | None = None
) -> tuple[bool, str]:
    decision = evaluate(POLICIES, request_for(POLICIES, who, action, key, headers or {}))
    return decision.allowed, decision.sid


DECISIONS = [
    ("gateway", "PutObject", KEY, CREATE, True, "Write"),
    ("gateway", "PutObject", KEY, {}, False, "CreateOnly"),
    ("gateway", "PutObject", KEY, {"If-None-Match": "etag"}, False, "CreateOnly"),
    ("gateway", "PutObject", BLOB, {}, True, "Write"),
    ("gateway", "PutObject", BLOB, {"x-amz-copy-source": "/b/k"}, False, "NoCopyInto"),
    ("gateway", "PutObject", KEY, CREATE | {"x-amz-copy-source": "/b/k"}, False, "NoCopyInto"),
    ("gateway", "PutObject", BLOB, {"s3:ObjectCreationOperation": "false"}, False, "NoMultipart"),
    ("gateway", "PutObject", "lake/v1/logs/x", {}, False, NOTHING_ALLOWS),
    ("gateway", "PutObject", "outside", {}, False, NOTHING_ALLOWS),
    ("gateway", "DeleteObject", KEY, {}, False, "NeverHidden"),
    ("gc", "DeleteObjectVersion", BLOB, {}, True, "DeleteVersions"),
    ("gc", "DeleteObject", BLOB, {}, False, "NeverHidden"),
    ("gc", "DeleteObjectVersion", KEY, {}, False, "NeverDeleted"),
    ("gc", "DeleteObjectVersion", REFERENCE, {}, False, "ReferencesByReconcilerAlone"),
    (ADMIN, "DeleteObjectVersion", REFERENCE, {}, False, "ReferencesByReconcilerAlone"),
    ("reconciler", "DeleteObjectVersion", REFERENCE, {}, True, "DeleteVersions"),
    ("reconciler", "DeleteObject", REFERENCE, {}, False, "NeverHidden"),
    ("spark", "DeleteObjectVersion", BLOB, {}, False, "BlobVersionsByGcAlone"),
    ("spark", "DeleteObject", "lake/v1/logs/x", {}, True, "Delete"),
    (ADMIN, "DeleteObjectVersion", BLOB, {}, False, "BlobVersionsByGcAlone"),
    (ADMIN, "PutObject", KEY, CREATE, False, "WritersOfGateway"),
    (ADMIN, "PutBucketPolicy", None, {}, False, "ReconfiguredByDeployerAlone"),
    (ADMIN, "GetObject", KEY, {}, True, ASSUMED_ADMIN),
    ("deployer", "PutBucketPolicy", None, {}, True, "Configure"),
    ("gateway", "GetObject", KEY, {"aws:SecureTransport": "false"}, False, "TlsOnly"),
    ("gateway", "GetObject", KEY, {"aws:SourceVpce": "vpce-other"}, False, "EndpointOnly"),
    ("deployer", "GetBucketPolicy", None, {"aws:SourceVpce": "vpce-other"}, True, "Look"),
    (
        *("gateway", "PutObject", BLOB),
        *({"x-amz-server-side-encryption": "AES256"}, False, "NoOtherEncryption"),
    ),
    ("gateway", "PutObject", BLOB, KMS, False, "NoUnnamedKey"),
    ("gateway", "PutObject", BLOB, KMS | {KEY_HEADER: "alias/other"}, False, "NoOtherKey"),
    ("gateway", "PutObject", BLOB, KMS | {KEY_HEADER: KEY_ARN}, True, "Write"),
    ("gateway", "PutObject", BLOB, {KEY_HEADER: "alias/aws/s3"}, False, "NoOtherKey"),
    (ADMIN, "UpdateObjectEncryption", "lake/v1/logs/x", {}, False, "NeverReencrypted"),
    (ADMIN, "ReplicateObject", "lake/v1/logs/x", {}, False, "NeverReencrypted"),
    ("auditor", "GetObject", KEY, {}, True, "Read"),
    ("auditor", "PutObject", "doctor/v1/x", {}, False, NOTHING_ALLOWS),
    ("operator", "PutObject", "decisions/v1/x.json", CREATE, True, "Write"),
    ("operator", "PutObject", DELETE, CREATE, True, "Write"),
    ("operator", "PutObject", DELETE, {}, False, "CreateOnly"),
    ("maintainer", "PutObject", DELETE, CREATE, True, "Write"),
    ("operator", "DeleteObject", DELETE, {}, False, "NeverHidden"),
    ("maintainer", "DeleteObject", DELETE, {}, False, "NeverHidden"),
    ("operator", "PutObject", "reconciler/v1/active-deletes.json", {}, True, "Write"),
    ("auditor", "PutObject", DELETE, CREATE, False, "WritersOfMaintainerAndOperator"),
    ("reconciler", "PutObject", DELETE, CREATE, False, "WritersOfMaintainerAndOperator"),
    ("gateway", "ListBucket", None, {"s3:prefix": "prod/accepted/v1/agent="}, True, "List"),
    ("gateway", "ListBucket", None, {"s3:prefix": "prod/lake/v1/"}, False, NOTHING_ALLOWS),
    ("anonymous", "GetObject", KEY, {}, False, "OwnAccountOnly"),
    (FOREIGNER, "GetObject", KEY, {}, False, "OwnAccountOnly"),
    (FOREIGNER, "ListBucket", None, {}, False, "OwnAccountOnly"),
    (SERVICE, "PutObject", "lake/v1/x", {}, False, "ServicesOfOwnAccountOnly"),
    (SERVICE, "PutObject", "lake/v1/x", for_account("444455556666"), False, "ServicesOfOwn"),
    (SERVICE, "PutObject", "lake/v1/x", for_account("111122223333"), False, NOTHING_ALLOWS),
]


@pytest.mark.parametrize("case", DECISIONS, ids=lambda case: f"{case[0]}-{case[1]}-{case[5]}")
def test_decisions_name_the_deciding_statement(
    case: tuple[str, str, str | None, dict[str, str], bool, str],
) -> None:
    who, action, key, headers, allowed, sid = case
    found = judge(who, action, key, headers)
    assert found[0] == allowed
    assert found[1].startswith(sid)


def bucket_with(**changes: object) -> PolicySet:
    statement = {
        "Sid": "Odd",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "*",
    } | changes
    return POLICIES.with_bucket(parse_document(json.dumps({"Statement": statement})))


@pytest.mark.parametrize(
    "changes",
    [
        {"Condition": {"NumericLessThan": {"s3:max-keys": "10"}}},
        {"Condition": {"StringEqualsIgnoreCase": {"s3:prefix": "a"}}},
        {"Condition": {"ForAnyValue:StringEquals": {"aws:CalledVia": "x"}}},
        {"Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}},
        {"Condition": {"StringEquals": {"s3:prefix": "${aws:username}"}}},
        {"Condition": {"Null": {"s3:prefix": "maybe"}}},
        {"Resource": "arn:aws:s3:::b/${aws:username}/*"},
        {"Principal": {"AWS": "arn:aws:iam::111122223333:root"}},
        {"Principal": {"AWS": "111122223333"}},
        {"Principal": {"AWS": "arn:aws:sts::111122223333:assumed-role/gateway/one"}},
    ],
)
def test_elements_that_are_not_rendered_are_errors(changes: dict[str, object]) -> None:
    odd = bucket_with(**changes)
    with pytest.raises(UnsupportedPolicy, match="not decided"):
        evaluate(odd, request_for(odd, "gateway", "GetObject", KEY, {}))


@pytest.mark.parametrize(
    "changes",
    [
        {"NotPrincipal": "*"},
        {"NotAction": "s3:GetObject"},
        {"NotResource": "*"},
        {"Principal": {"CanonicalUser": "79a59df900b949e55d96a1e698fbaced"}},
        {"Principal": {"Service": "*"}},
        {"Principal": {}},
    ],
)
def test_negated_elements_are_rejected_when_parsed(changes: dict[str, object]) -> None:
    with pytest.raises(UnsupportedPolicy):
        bucket_with(**changes)


def test_a_grant_to_a_whole_account_or_a_service_matches_its_callers() -> None:
    for principal, who, allowed in (
        ({"AWS": "444455556666"}, FOREIGNER, True),
        ({"AWS": "arn:aws:iam::444455556666:root"}, FOREIGNER, True),
        ({"AWS": "777788889999"}, FOREIGNER, False),
        ({"Service": SERVICE}, SERVICE, True),
        ({"Service": SERVICE}, "delivery.logs.amazonaws.com", False),
        ({"AWS": FOREIGNER, "Service": SERVICE}, SERVICE, True),
    ):
        open_bucket = bucket_with(Effect="Allow", Principal=principal)
        request = request_for(open_bucket, who, "GetObject", KEY, {})
        assert evaluate(open_bucket, request).allowed is allowed, principal


def test_a_duplicate_key_is_rejected() -> None:
    with pytest.raises(BadDocument, match="duplicate key 'Effect'"):
        parse_document('{"Statement": [{"Effect": "Deny", "Effect": "Allow"}]}')


def test_an_unknown_action_is_rejected() -> None:
    with pytest.raises(BadDocument, match="no such action"):
        request_for(POLICIES, "gateway", "PutObjects", KEY, {})


MISSING = {
    "StringEquals": False,
    "StringNotEquals": True,
    "StringLike": False,
    "StringNotLike": True,
    "StringEqualsIfExists": True,
    "StringNotEqualsIfExists": True,
    "StringLikeIfExists": True,
    "StringNotLikeIfExists": True,
    "Bool": False,
    "BoolIfExists": True,
}


@pytest.mark.parametrize("operator", MISSING)
def test_an_absent_key_is_evaluated_as_iam_documents(operator: str) -> None:
    condition = Condition(operator=operator, key="k", values=("true",))
    assert condition_holds(condition, None) == MISSING[operator]


def test_null_checks_whether_the_key_is_present() -> None:
    for wanted, value, holds in (
        ("true", None, True),
        ("true", "x", False),
        ("false", None, False),
        ("false", "x", True),
    ):
        assert (
            condition_holds(Condition(operator="Null", key="k", values=(wanted,)), value) == holds
        )
