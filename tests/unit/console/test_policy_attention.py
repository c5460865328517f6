"""The overview names lost denials of the policies, and policies that cannot be proved."""

import asyncio
from pathlib import Path

from support.policies_live import GOLDEN, settings

from sluice_console.attention import OverviewFacts, PolicyTotals, list_attention
from sluice_console.metrics import DENIALS, ConsoleMetrics
from sluice_console.policies import PolicyProof, PolicyProofs
from sluice_console.settings import PolicySettings
from sluice_policies.model import Document
from sluice_policies.policy_set import policy_set
from sluice_policies.prove_denials import prove_denials
from sluice_policies.required_properties import required_properties
from sluice_policies.settings import Target
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import UnixNs

AWS = policy_set(settings(), Target.AWS)
COMMAND = "sluice policies denials --settings policies.toml --live"


def totals(lost: str = "") -> PolicyTotals:
    kept = tuple(one for one in AWS.bucket.statements if one.sid != lost)
    items = tuple(one for one in required_properties(AWS) if one.name == "accepted-never-deleted")
    report = prove_denials(AWS.with_bucket(Document(statements=kept)), items)
    return PolicyProof(at_ns=UnixNs(1), report=report, command=COMMAND).totals()


def test_policies_that_deny_everything_need_no_attention() -> None:
    assert list_attention(OverviewFacts(policies=totals())) == ()
    assert list_attention(OverviewFacts(policies=None)) == ()


def test_a_lost_denial_is_an_error_with_the_request_and_the_statement() -> None:
    (item,) = list_attention(OverviewFacts(policies=totals("NeverDeleted")))
    assert (item.severity, item.page, item.command) == ("error", "store", COMMAND)
    assert item.title == "1 denial of the policies is lost"
    assert "every caller: s3:DeleteObjectVersion" in item.detail
    assert "missing or changed: NeverDeleted" in item.detail
    assert "sluice policies diff" in item.detail


def test_policies_that_cannot_be_proved_are_a_warning_with_the_reason() -> None:
    proof = PolicyProof(at_ns=UnixNs(1), report=None, command=COMMAND, problem="access denied")
    (item,) = list_attention(OverviewFacts(policies=proof.totals()))
    assert (item.severity, item.detail, item.command) == ("warning", "access denied", COMMAND)
    (item,) = list_attention(OverviewFacts(policies=PolicyTotals(undecided=2)))
    assert "2 denials" in item.title


def proved(chosen: PolicySettings, metrics: ConsoleMetrics) -> PolicyProof:
    """Return the first proof of a separate process."""

    async def wait() -> PolicyProof:
        proofs = PolicyProofs(chosen, SystemClock(), metrics)
        proofs.refresh()
        proofs.refresh()  # one is running
        async with asyncio.timeout(120):
            await proofs.settled()
        proofs.refresh()  # the last one is recent
        await proofs.close()
        return proofs.newest

    return asyncio.run(wait())


def test_a_missing_settings_file_is_the_problem(tmp_path: Path) -> None:
    metrics = ConsoleMetrics()
    metrics.show_proof(PolicyTotals(denied=41, allowed=1))
    found = proved(PolicySettings(file=str(tmp_path / "none.toml")), metrics)
    assert found.report is None
    assert "cannot read settings" in found.problem
    assert shown(metrics) == {}, "nothing is proved, so no alert may rest on an older proof"


def shown(metrics: ConsoleMetrics) -> dict[str, float]:
    (family,) = [one for one in metrics.registry.collect() if one.name == DENIALS]
    return {one.labels["result"]: one.value for one in family.samples}


def test_a_lost_denial_is_a_metric_for_an_alert() -> None:
    metrics = ConsoleMetrics()
    metrics.show_proof(totals("NeverDeleted"))
    assert shown(metrics)["allowed"] == 1
    sound = totals()
    metrics.show_proof(sound)
    assert shown(metrics) == {"denied": sound.denied, "allowed": 0, "undecided": 0}
    assert sound.denied > 0


async def test_a_proof_that_is_running_ends_with_the_console() -> None:
    golden = PolicySettings(file=str(GOLDEN / "settings.toml"))
    proofs = PolicyProofs(golden, SystemClock(), ConsoleMetrics())
    proofs.refresh()
    await asyncio.sleep(0.2)
    async with asyncio.timeout(5):
        await proofs.close()
    assert proofs.newest is None


async def test_without_a_file_nothing_is_proved() -> None:
    proofs = PolicyProofs(PolicySettings(), SystemClock(), ConsoleMetrics())
    proofs.refresh()
    await asyncio.sleep(0)
    assert proofs.newest is None
    await proofs.close()
