"""Every required property is proved in time, and wrong documents yield a readable request."""

import time
from dataclasses import replace

import pytest
from support.policies_settings import bare_settings, settings
from support.policy_mutants import caught_by, equivalent, mutants

from sluice_policies.model import Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.prove import prove, prover_for
from sluice_policies.required_properties import required_properties
from sluice_policies.settings import RoleName, Settings, Target

VARIANTS = {
    "pinned": settings(),
    "bare": bare_settings(),
    "blobs created once": settings(
        ("[notifications]", "[raw_blobs]\nrequire_if_none_match = true\n[notifications]")
    ),
}


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_property_is_proved_within_five_seconds(variant: str, target: Target) -> None:
    """CPU time, because the machine may be shared."""
    started = time.process_time()
    verdicts = prove(policy_set(VARIANTS[variant], target))
    assert [v.property.name for v in verdicts if not v.holds] == []
    assert time.process_time() - started < 5


def without(policies: PolicySet, sid: str) -> PolicySet:
    kept = tuple(s for s in policies.bucket.statements if s.sid != sid)
    assert len(kept) < len(policies.bucket.statements)
    return policies.with_bucket(Document(statements=kept))


BREAKS = {
    "CreateOnly": ("accepted-created-once", "s3:PutObject on arn:aws:s3:::example-sluice/prod/"),
    "NeverDeleted": ("accepted-never-deleted", "s3:DeleteObjectVersion"),
    "NeverHiddenOrReplaced": ("blobs-never-hidden", "raw-blobs/v1/"),
    "NoCopyInto": ("no-copy-into-accepted-or-blobs", "s3:x-amz-copy-source="),
    "NoMultipartInto": ("no-multipart-into-accepted-or-blobs", "objectcreationoperation='false'"),
    "BlobVersionsByGcAlone": ("blob-versions-deleted-by-gc-alone", "raw-blobs/v1/"),
    "TlsOnly": ("tls-only", "aws:securetransport='false'"),
    "NoOtherEncryption": ("encrypted-as-set", "s3:x-amz-server-side-encryption="),
    "NoOtherKey": ("encrypted-as-set", "aws-kms-key-id="),
    "EndpointOnly": ("endpoint-only", "on arn:aws:s3:::example-sluice"),
    "WritersOfGateway": ("written-by-writers-alone", "s3:PutObject"),
    "ReconfiguredByDeployerAlone": ("reconfigured-by-deployer-alone", "on arn:aws:s3:::example"),
    "NoLocksByHand": ("locks-never-touched-by-hand", "s3:BypassGovernanceRetention"),
}


@pytest.mark.parametrize("sid", BREAKS)
def test_a_dropped_statement_yields_a_readable_counterexample(sid: str) -> None:
    name, part = BREAKS[sid]
    broken = without(policy_set(settings(), Target.AWS), sid)
    item = next(item for item in required_properties(broken) if item.name == name)
    verdict = prover_for(broken).check(broken, item)
    assert not verdict.holds
    assert part in str(verdict.counterexample)


def test_denying_everything_violates_the_work_of_every_role() -> None:
    """Properties of safety alone would accept such a policy."""
    policies = policy_set(settings(), Target.AWS)
    wall = PolicyStatement(
        sid="Wall", effect=PolicyEffect.DENY, principals=("*",), actions=("s3:*",), resources=("*",)
    )
    walled = policies.with_bucket(Document(statements=(*policies.bucket.statements, wall)))
    broken = {v.property.name for v in prove(walled) if not v.holds}
    assert broken == {"rest-left-alone", *(f"{role.value}-can-work" for role in RoleName)}


def test_a_pattern_in_the_gc_exemption_yields_an_intruder() -> None:
    """With `role/gc*` instead of `role/gc`, `role/gcx` could delete blobs."""
    policies = policy_set(settings(), Target.AWS)
    index, statement = next(
        (i, s) for i, s in enumerate(policies.bucket.statements) if s.sid == "BlobVersionsByGcAlone"
    )
    arn = settings().role(RoleName.GC).arn
    slip = Condition(operator="StringNotLike", key="aws:PrincipalArn", values=(f"{arn}*",))
    slipped = policies.bucket.replaced(index, replace(statement, conditions=(slip,)))
    verdicts = prove(policies.with_bucket(slipped))
    broken = [v for v in verdicts if not v.holds]
    assert [v.property.name for v in broken] == ["blob-versions-deleted-by-gc-alone"]
    assert broken[0].counterexample is not None
    intruder = broken[0].counterexample.caller
    assert intruder is not None
    assert intruder.startswith(arn)
    assert intruder != arn


def check_mutants(chosen: Settings, target: Target, step: int) -> tuple[int, int]:
    policies = policy_set(chosen, target)
    prover, properties = prover_for(policies), required_properties(policies)
    every = list(mutants(policies))[::step]
    same = 0
    for mutant in every:
        verdict = caught_by(prover, mutant, properties)
        if verdict is None:
            assert equivalent(policies, mutant.policies), f"survives: {mutant.name}"
            same += 1
        else:
            assert not verdict.unknown, f"{mutant.name}: {verdict.unknown}"
    return len(every), same


def test_every_31st_mutant_is_caught_or_equivalent() -> None:
    """`make test-long` runs all of them."""
    tried, _ = check_mutants(settings(), Target.AWS, 31)
    assert tried > 30


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("variant", ["pinned", "blobs created once"])
def test_every_mutant_is_caught_or_equivalent(variant: str, target: Target) -> None:
    """On AWS each mutant is caught. On versitygw some denials repeat what no statement grants."""
    tried, same = check_mutants(VARIANTS[variant], target, 1)
    assert tried > 400
    if target is Target.AWS:
        assert same == 0
