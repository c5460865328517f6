"""The rules of the rendered policies on a server that enforces them, over the real client.

moto evaluates no condition, and versitygw does not fill in `s3:if-none-match`. This server decides
every request by its method, query and headers before it performs it.
"""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.builders import make_identity, salted_frame
from support.frames import logs
from support.policies_live import profile, settings_file, write_profiles
from support.policies_server import enforcing_server

from sluice_gateway.uploads.acceptor import Acceptor, Upload
from sluice_policies.model import Document
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.probes import PROBES, ProbeOutcome
from sluice_policies.settings import RoleName, Target, read_settings
from sluice_policies.verify import open_with_profiles, send_probes
from sluice_protocol.acceptance import Accepted, Conflict
from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreDenied
from sluice_protocol.frame import decode_head
from sluice_protocol.keys import accepted_key, digest_of
from sluice_protocol.outcomes import Applied, Exists
from sluice_protocol.system_clock import SystemClock
from sluice_store.port import ObjectStore
from sluice_store.s3.sdk import open_s3_store

ONCE = "[raw_blobs]\nrequire_if_none_match = true\n"


@pytest.fixture(params=["", ONCE], ids=["free", "once"])
def policies(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PolicySet:
    write_profiles(tmp_path, monkeypatch)
    path = settings_file(tmp_path, "aws", tls=True, extra=request.param)
    return policy_set(read_settings(path), Target.AWS)


def without(policies: PolicySet, sid: str) -> PolicySet:
    kept = tuple(s for s in policies.bucket.statements if s.sid != sid)
    assert len(kept) < len(policies.bucket.statements)
    return policies.with_bucket(Document(statements=kept))


async def probed(enforced: PolicySet, folder: Path) -> dict[str, ProbeOutcome]:
    """Send every probe to a server that enforces these documents."""
    async with enforcing_server(enforced, folder) as (_, where):
        opened = open_with_profiles(enforced.settings, where)
        rendered = policy_set(enforced.settings, Target.AWS)
        found = [item async for item in send_probes(rendered, opened, "run")]
    return {item.probe.name: item.outcome for item in found}


@pytest.mark.daily(1)
def test_every_probe_is_answered_as_required(policies: PolicySet, tmp_path: Path) -> None:
    outcomes = asyncio.run(probed(policies, tmp_path))
    assert set(outcomes) == {probe.name for probe in PROBES}
    assert {n for n, outcome in outcomes.items() if outcome is not ProbeOutcome.AS_REQUIRED} == (
        set()
    )


NOT_ENFORCED = {
    "CreateOnly": {"put-without-header", "console-overwrite-approval"},
    "NoCopyInto": {"copy-into-blobs"},
    "NoOtherEncryption": {"put-other-encryption", "put-unnamed-key"},
}


@pytest.mark.long
def test_the_probes_find_the_rules_that_the_server_does_not_enforce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles(tmp_path, monkeypatch)
    policies = policy_set(read_settings(settings_file(tmp_path, "aws", tls=True)), Target.AWS)
    for sid in NOT_ENFORCED:
        policies = without(policies, sid)
    outcomes = asyncio.run(probed(policies, tmp_path))
    wrong = {name for name, outcome in outcomes.items() if outcome is ProbeOutcome.WRONG}
    both = {"copy-into-accepted"}  # CreateOnly and NoCopyInto deny it
    assert wrong == both.union(*NOT_ENFORCED.values())


async def upload(store: ObjectStore, salt: str, attempt: int) -> object:
    frame = salted_frame(make_identity(count=3, boot="b"), logs(), salt)
    head = decode_head(frame)
    acceptor = Acceptor(
        store=store,
        authority=Authority(authority_id="A1"),
        collector_id="c1",
        clock=SystemClock(),
        rng=random.Random(1),
        time_s_max=30.0,
    )
    run = await acceptor.accept(
        Upload(
            frame=frame,
            digest=digest_of(frame),
            identity=head.envelope.identity,
            envelope=head.envelope,
            principal="host-1",
            attempt_id=f"{attempt:026d}",
            sent_before=False,
        )
    )
    return run.verdict


async def test_the_protocol_accepts_and_quarantines_behind_the_enforced_rules(
    policies: PolicySet, tmp_path: Path
) -> None:
    async with (
        enforcing_server(policies, tmp_path) as (server, where),
        open_s3_store(where) as store,
    ):
        first, again, other = [
            await upload(store, salt, attempt) for attempt, salt in enumerate("aab")
        ]
        assert isinstance(first, Accepted)
        assert isinstance(again, Accepted)
        assert again.duplicate
        assert isinstance(other, Conflict)
        assert any("/accepted/" in f"/{call.key}" for call in server.seen)


async def test_a_manifest_is_never_written_without_the_header(
    policies: PolicySet, tmp_path: Path
) -> None:
    """The rule rejects the request before S3 reads the precondition; with the header it is 412."""
    key = accepted_key(make_identity(count=3, boot="b"))

    async with enforcing_server(policies, tmp_path) as (server, where):
        async with open_s3_store(where) as gateway:
            with pytest.raises(StoreDenied):
                await gateway.overwrite(key, b"forged")
            assert isinstance(await gateway.create(key, b"first"), Applied)
            with pytest.raises(StoreDenied):
                await gateway.overwrite(key, b"forged")
            assert isinstance(await gateway.create(key, b"forged"), Exists)
        spark = replace(where, profile=profile(RoleName.SPARK))
        async with open_s3_store(spark) as other:
            with pytest.raises(StoreDenied):
                await other.create(key, b"forged")
        [created] = server.buckets[where.bucket].changes
        assert created.version.body == b"first"
