"""Each required denial names its callers, the statements that deny it, and a proof."""

import msgspec
import pytest
from support.policies_live import bare_settings, settings

from sluice_policies.denials import (
    Denial,
    DenialGround,
    DenialOutcome,
    DenialReport,
    check_role,
    describe_condition,
    describe_denial,
)
from sluice_policies.model import Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.properties import Property
from sluice_policies.prove_denials import prove_denials
from sluice_policies.required_properties import required_properties
from sluice_policies.settings import RoleName, Target
from sluice_protocol.errors import BadUsage

AWS = policy_set(settings(), Target.AWS)
EVERY_ROLE = {name.value for name in RoleName}


@pytest.fixture(scope="module")
def report() -> DenialReport:
    return prove_denials(AWS)


def of(report: DenialReport, name: str) -> list[Denial]:
    return [one for one in report.denials if one.property == name]


def properties_of(*names: str) -> tuple[Property, ...]:
    return tuple(one for one in required_properties(AWS) if one.name in names)


def without(sid: str) -> PolicySet:
    kept = tuple(one for one in AWS.bucket.statements if one.sid != sid)
    assert len(kept) == len(AWS.bucket.statements) - 1
    return AWS.with_bucket(Document(statements=kept))


@pytest.mark.parametrize(
    "target", [Target.AWS, pytest.param(Target.VERSITYGW, marks=pytest.mark.long)]
)
def test_every_rendered_denial_is_proved(target: Target) -> None:
    for chosen in (settings(), bare_settings()):
        found = prove_denials(policy_set(chosen, target))
        assert [describe_denial(one) for one in found.denials if one.proof == ""] == []
        assert found.denied == len(found.denials) > 40
        assert (found.allowed, found.undecided) == (0, 0)


def test_a_manifest_is_created_once_by_every_caller(report: DenialReport) -> None:
    (one,) = of(report, "accepted-created-once")
    assert (set(one.roles), one.others) == (EVERY_ROLE, True)
    assert one.actions == ("s3:PutObject",)
    assert "prod/accepted/v1/*" in one.resources
    assert one.unless == (("s3:if-none-match is *",),)
    assert [statement.sid for statement in one.statements] == ["CreateOnly"]
    assert one.statements[0].document == "bucket-policy"
    assert "one identity has one decision" in one.statements[0].reason
    assert one.ground is DenialGround.STATEMENT
    assert "matches CreateOnly" in one.proof
    assert "overrides every allow" in one.proof
    assert one.requirement == "create-only"
    assert "accept different bytes" in one.risk


def test_a_role_that_meets_the_condition_itself_is_not_denied(report: DenialReport) -> None:
    """Only gc deletes versions of blobs, so the denial is for all others."""
    (one,) = of(report, "blob-versions-deleted-by-gc-alone")
    assert set(one.roles) == EVERY_ROLE - {"gc"}
    assert one.others
    assert one.unless == ()
    assert [statement.sid for statement in one.statements] == ["BlobVersionsByGcAlone"]


def test_a_denial_of_one_role_names_that_role_alone(report: DenialReport) -> None:
    (one,) = of(report, "deleter-certifies-nothing")
    assert (one.roles, one.others) == (("gc",), False)
    assert all(statement.sid.startswith("WritersOf") for statement in one.statements)


def test_other_accounts_are_no_role(report: DenialReport) -> None:
    for one in of(report, "strangers-do-nothing"):
        assert (one.roles, one.others) == ((), True)
    (reading,) = [
        one for one in of(report, "strangers-do-nothing") if "s3:GetObject" in one.actions
    ]
    sids = {statement.sid for statement in reading.statements}
    assert sids == {"OwnAccountOnly", "ServicesOfOwnAccountOnly"}


def test_what_no_policy_of_a_role_allows_has_no_statement(report: DenialReport) -> None:
    found = of(report, "gateway-nothing-else")
    (deleting,) = [one for one in found if "s3:DeleteObjectVersion" in one.actions]
    assert deleting.ground is DenialGround.NOTHING_ALLOWS
    assert deleting.statements == ()
    assert "what nothing allows is denied" in deleting.proof
    assert "Another policy of the role could allow it" in deleting.proof


def test_the_spark_role_puts_no_delete_marker_over_an_index_chunk(report: DenialReport) -> None:
    """It deletes exact versions there; under the lake and the rollups it deletes objects."""
    found = of(report, "spark-nothing-else")
    (markers,) = [one for one in found if "s3:DeleteObject" in one.actions]
    (versions,) = [one for one in found if "s3:DeleteObjectVersion" in one.actions]
    assert markers is not versions
    assert "prod/index/v1/*" not in str(markers.resources)
    assert "prod/index/v1/*" in str(versions.resources)
    assert "prod/manifests/v1/*" not in str(versions.resources)


SIDS = [one.sid for one in AWS.bucket.statements]


@pytest.mark.daily(2)
@pytest.mark.parametrize("sid", SIDS)
def test_a_statement_that_is_removed_is_missing_where_it_is_needed(
    sid: str, report: DenialReport
) -> None:
    """Each statement is the ground of a denial, and its absence shows there as a request."""
    needed = {
        denial.property
        for denial in report.denials
        if sid in {statement.sid for statement in denial.statements}
    }
    assert needed
    found = prove_denials(without(sid), properties_of(*needed))
    lost = [one for one in found.denials if one.outcome is DenialOutcome.ALLOWED]
    assert lost, "another statement denies the same"
    assert found.denials[: len(lost)] == tuple(lost), "what is lost is first"
    for one in lost:
        assert sid in one.missing
        assert one.example
        assert one.allowed_by
        assert (one.ground, one.statements, one.proof) == (DenialGround.NONE, (), "")


def test_an_allow_of_a_role_beyond_its_prefixes_is_found() -> None:
    more = PolicyStatement(
        sid="TooMuch",
        effect=PolicyEffect.ALLOW,
        actions=("s3:GetObject",),
        resources=("arn:aws:s3:::example-sluice/*",),
    )
    own = AWS.identities[RoleName.GATEWAY]
    weak = AWS.with_identity(RoleName.GATEWAY, Document(statements=(*own.statements, more)))
    found = prove_denials(weak)
    lost = [one for one in found.denials if one.outcome is DenialOutcome.ALLOWED]
    assert {one.property for one in lost} == {"gateway-nothing-else"}
    (one,) = lost
    assert one.actions == ("s3:GetObject",)
    assert one.allowed_by == "TooMuch"
    assert one.missing == ("role-gateway",)


def test_an_action_beyond_the_bucket_is_undecided() -> None:
    more = PolicyStatement(
        sid="Assume", effect=PolicyEffect.ALLOW, actions=("sts:AssumeRole",), resources=("*",)
    )
    own = AWS.identities[RoleName.SPARK]
    weak = AWS.with_identity(RoleName.SPARK, Document(statements=(*own.statements, more)))
    items = properties_of("spark-nothing-else")
    found = prove_denials(weak, items).denials
    assert found
    assert {one.outcome for one in found} == {DenialOutcome.UNDECIDED}
    assert all("sts:AssumeRole" in one.example for one in found)


def test_a_missing_policy_is_an_empty_document() -> None:
    items = properties_of("accepted-created-once", "accepted-never-deleted", "tls-only")
    found = prove_denials(AWS.with_bucket(Document(statements=())), items)
    lost = {one.property for one in found.denials if one.outcome is DenialOutcome.ALLOWED}
    assert lost == {one.name for one in items}


def test_a_report_is_filtered_by_role_and_action(report: DenialReport) -> None:
    mine = report.matching("gateway", "putobject")
    assert 0 < len(mine.denials) < len(report.denials)
    assert mine.denied == len(mine.denials)
    for one in mine.denials:
        assert "gateway" in one.roles
        assert "s3:PutObject" in one.actions
    others = report.matching("other", "")
    assert others.denials
    assert all(one.others for one in others.denials)
    assert report.matching("gc", "s3:NoSuch").denials == ()
    assert report.matching("", "") == report


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"no such role: use one of gateway, .*other"):
        check_role("admin")


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("StringEquals", ("a", "b"), "k is a or b"),
        ("StringNotEquals", ("a",), "k is not a"),
        ("StringLikeIfExists", ("a*",), "k is absent, or it matches a*"),
        ("Null", ("true",), "k is absent"),
        ("Null", ("false",), "k is sent"),
        ("Bool", ("true",), "k is true"),
    ],
)
def test_a_condition_is_described(operator: str, values: tuple[str, ...], words: str) -> None:
    assert describe_condition(Condition(operator=operator, key="k", values=values)) == words


def test_a_denial_is_described_on_one_line(report: DenialReport) -> None:
    (one,) = of(report, "accepted-created-once")
    text = describe_denial(msgspec.structs.replace(one, resources=("accepted/*",)))
    assert text == (
        "every caller: s3:PutObject on accepted/*, unless s3:if-none-match is *"
        " (accepted-created-once)"
    )
