"""The catalogue has every action that the access matrix and the bucket policies name."""

import re
import sys

import pytest
from support.policies_live import settings

from sluice_policies.access_matrix import ACTIONS, BUCKET_READS, LISTING, LOCKS, REWRITING
from sluice_policies.catalogue import (
    KMS_ACTIONS,
    ResourceType,
    bucket_actions,
    catalogue,
    inspecting_actions,
    object_actions,
    reconfiguring_actions,
)
from sluice_policies.policy_set import VERSITYGW_ACTIONS, policy_set
from sluice_policies.render import documents
from sluice_policies.settings import Target
from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage

OBJECT_ACTIONS = {action for actions in ACTIONS.values() for action in actions}
OBJECT_ACTIONS |= {*LOCKS, *REWRITING}


def type_of(action: str) -> ResourceType:
    return catalogue().actions[action.lower()].resource_type


def test_every_object_action_of_the_matrix_is_on_objects() -> None:
    assert {type_of(action) for action in OBJECT_ACTIONS} == {ResourceType.OBJECT}


def test_every_bucket_action_of_the_matrix_is_on_the_bucket() -> None:
    assert {type_of(action) for action in (*LISTING, *BUCKET_READS)} == {ResourceType.BUCKET}


def test_every_rendered_statement_names_actions_of_one_resource_type() -> None:
    for document in documents(policy_set(settings(), Target.AWS)).values():
        for statement in document.statements:
            if statement.actions == ("s3:*",):
                continue
            [found] = {type_of(action) for action in statement.actions}
            on_objects = all("/" in arn for arn in statement.resources if ":s3:::" in arn)
            on_key = all(":kms:" in arn for arn in statement.resources)
            expected = ResourceType.OBJECT if on_objects else ResourceType.BUCKET
            assert found == (ResourceType.KEY if on_key else expected), statement.sid


def test_every_action_of_versitygw_is_known() -> None:
    assert {action.lower() for action in VERSITYGW_ACTIONS} <= catalogue().actions.keys()


def test_actions_that_can_lose_data_are_reconfiguring() -> None:
    for name in (
        *("PutBucketPolicy", "DeleteBucketPolicy", "PutBucketVersioning", "DeleteBucket"),
        *("PutLifecycleConfiguration", "PutReplicationConfiguration", "PutEncryptionConfiguration"),
        *("PutBucketObjectLockConfiguration", "PutBucketPublicAccessBlock", "PutBucketAcl"),
    ):
        assert f"s3:{name}" in reconfiguring_actions()
    assert "s3:CreateBucket" not in reconfiguring_actions()


def test_reading_and_changing_a_bucket_do_not_overlap() -> None:
    assert not set(inspecting_actions()) & set(reconfiguring_actions())
    assert not set(object_actions()) & set(bucket_actions())
    assert {type_of(f"kms:{name}") for name in KMS_ACTIONS} == {ResourceType.KEY}


def test_condition_keys_of_the_rules_are_known() -> None:
    table = catalogue()
    put = table.actions["s3:putobject"]
    for key in ("s3:if-none-match", "s3:x-amz-copy-source", "s3:ObjectCreationOperation"):
        assert table.applies(key, put)
        assert not table.applies(key, table.actions["s3:deleteobject"])
    assert table.known_key("s3:prefix")
    assert not table.known_key("s3:if-none-matches")
    for key in ("aws:SecureTransport", "s3:ObjectCreationOperation"):
        assert table.is_bool_key(key)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "policy_sentry.shared.iam_data", None)
    catalogue.cache_clear()
    with pytest.raises(BadUsage, match=re.escape(install_command("policies"))):
        catalogue()
