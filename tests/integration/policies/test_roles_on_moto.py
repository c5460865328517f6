"""The rendered policies of roles on moto, which enforces them for sessions of these roles.

It evaluates no condition, so the bucket policy is dropped here: moto would deny every request.
`test_enforcing_server.py` tests the rules of that policy.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.policies_live import ADMIN_PROFILE, BUCKET, profile, settings_file, write_profiles
from support.policies_moto import enforced_roles, moto_with_bucket, with_client
from support.store_conformance import MOTO_ALLOWS

from sluice_cli.init import create_deployment
from sluice_policies.live_documents import apply_changes, changes, read_live
from sluice_policies.policy_set import policy_set
from sluice_policies.probes import PROBES
from sluice_policies.settings import RoleName, Target, read_settings
from sluice_policies.verify import ProbeOutcome, open_with_profiles, send_probes
from sluice_protocol import keys
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, StoreDenied, StoreUnavailable
from sluice_protocol.expiry import RetentionDecision
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import ObjectKey
from sluice_store.administration import open_administration
from sluice_store.conformance import collect_keys
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import S3Settings
from sluice_store.stored_expiry import Unchanged

WANTED = Authority(authority_id="A" * 26)
KEEP_S = 90 * 86_400
KEY = ObjectKey(f"{keys.ACCEPTED}agent=61/boot=62/key.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roles")


@pytest.fixture(scope="module")
def applied(folder: Path) -> Iterator[S3Settings]:
    """Apply the documents to a bucket, drop its policy, and enforce those of the roles."""
    settings = read_settings(settings_file(folder, "aws", tls=True))

    async def write(where: S3Settings) -> None:
        async with open_administration(replace(where, profile=ADMIN_PROFILE)) as admin:
            live = await read_live(settings, Target.AWS, admin)
            await apply_changes(settings, Target.AWS, admin, changes(settings, Target.AWS, live))
        async with open_s3_store(replace(where, profile=ADMIN_PROFILE)) as store:
            # moto takes the bucket policy as a denial of everything.
            with pytest.raises(StoreUnavailable, match="403"):
                await store.get(KEY)

    with pytest.MonkeyPatch.context() as patch:
        write_profiles(folder, patch)
        with moto_with_bucket() as endpoint:
            where = S3Settings(bucket=BUCKET, prefix="prod/", endpoint=endpoint, region="us-east-1")
            asyncio.run(write(where))
            with_client("s3", endpoint, lambda s3: s3.delete_bucket_policy(Bucket=BUCKET))
            with enforced_roles(endpoint, folder):
                yield where


@pytest.mark.long
def test_roles_may_do_what_they_need_and_nothing_else(applied: S3Settings, folder: Path) -> None:
    """Every probe has its result, except for those that only the bucket policy denies."""
    settings = read_settings(settings_file(folder, "aws", tls=True))

    async def probe() -> dict[str, ProbeOutcome]:
        opened = open_with_profiles(settings, applied)
        sent = send_probes(policy_set(settings, Target.AWS), opened, "run")
        return {item.probe.name: item.outcome async for item in sent}

    outcomes = asyncio.run(probe())
    assert set(outcomes) == {one.name for one in PROBES}
    wrong = {name for name, found in outcomes.items() if found is not ProbeOutcome.AS_REQUIRED}
    assert wrong == MOTO_ALLOWS


async def test_a_gateway_creates_the_settings_and_an_operator_decides_how_long_records_are_kept(
    applied: S3Settings,
) -> None:
    """As the two jobs of the Helm chart do; a repetition of either changes nothing."""

    async def init(role: RoleName, keep_s: int | Unchanged) -> RetentionDecision | None:
        async with open_s3_store(replace(applied, profile=profile(role))) as store:
            return (await create_deployment(store, WANTED, keep_s))[1]

    with pytest.raises(StoreDenied):
        await init(RoleName.OPERATOR, KEEP_S)  # no gateway has created the settings yet
    assert await init(RoleName.GATEWAY, "unchanged") is None
    with pytest.raises(StoreDenied):
        await init(RoleName.GATEWAY, KEEP_S)
    for _ in range(2):
        rule = await init(RoleName.OPERATOR, KEEP_S)
        assert rule is not None
        assert (rule.number, rule.raw_keep_s, rule.tables_keep_s) == (1, KEEP_S, KEEP_S)
        assert await init(RoleName.GATEWAY, "unchanged") is None
    with pytest.raises(BadUsage, match="another decision about retention"):
        await init(RoleName.OPERATOR, KEEP_S + 86_400)


async def test_a_denied_role_and_invalid_keys_are_denied_by_the_store(
    applied: S3Settings, folder: Path
) -> None:
    """The gateway creates and cannot delete; a wrong secret and an unknown key do nothing."""
    with (folder / "credentials").open("a") as file:
        text = (folder / "credentials").read_text()
        mine = text.partition(f"[{profile(RoleName.GATEWAY)}]")[2].partition("[")[0]
        secret = mine.partition("aws_secret_access_key = ")[2].partition("\n")[0]
        file.write(f"[forged]{mine.replace(secret, 'x' * len(secret))}")
        file.write("[unknown]\naws_access_key_id = AKIAUNKNOWN\naws_secret_access_key = x\n")

    gateway = replace(applied, profile=profile(RoleName.GATEWAY))
    async with open_s3_store(gateway) as store:
        made = await store.create(KEY, b"x")
        assert isinstance(made, Applied)
        assert made.incarnation is not None
        assert isinstance(await store.get(KEY), Found)
        with pytest.raises(StoreDenied, match="AccessDenied"):
            await store.delete(KEY, made.incarnation)
        with pytest.raises(StoreDenied, match="AccessDenied"):
            await store.create(ObjectKey(f"{keys.LAKE}x"), b"x")
    for name, code in (("forged", "SignatureDoesNotMatch"), ("unknown", "InvalidAccessKeyId")):
        async with open_s3_store(replace(applied, profile=name)) as store:
            with pytest.raises(StoreDenied, match=code):
                await store.create(KEY, b"y")
            with pytest.raises(StoreDenied):
                await store.get(KEY)
            with pytest.raises(StoreDenied):
                await collect_keys(store, "")
