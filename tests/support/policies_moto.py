"""A bucket and the roles of a deployment on moto.

moto enforces nothing until `enforced_roles`, and then the policies of roles without conditions.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aioboto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.authorization import enable_iam_authentication
from support.policies_live import ADMIN_PROFILE, BUCKET, profile
from support.store_buckets import moto_server

from sluice_policies.settings import RoleName


def with_client(service: str, endpoint: str, act: Callable[[Any], Awaitable[object]]) -> object:
    async def doing() -> object:
        session = aioboto3.Session(profile_name=ADMIN_PROFILE)
        async with session.client(
            service, endpoint_url=endpoint, region_name="us-east-1"
        ) as client:
            return await act(client)

    return asyncio.run(doing())


@contextmanager
def moto_with_bucket() -> Iterator[str]:
    """Run moto with the bucket and a role for each role of sluice; yield its URL.

    The profiles of `write_profiles` must be selected.
    """

    async def make_bucket(s3: Any) -> None:
        await s3.create_bucket(Bucket=BUCKET)

    async def make_roles(iam: Any) -> None:
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        for name in RoleName:
            await iam.create_role(
                RoleName=name.value, Path="/sluice/", AssumeRolePolicyDocument=trust
            )

    with moto_server() as server:
        with_client("s3", server.endpoint, make_bucket)
        with_client("iam", server.endpoint, make_roles)
        yield server.endpoint


@contextmanager
def enforced_roles(endpoint: str, folder: Path) -> Iterator[None]:
    """Replace the profiles of the roles by sessions of the roles, and enforce their policies.

    Signatures are then checked with the signer of the SDK.
    """
    sessions: list[str] = []

    async def assume(sts: Any) -> None:
        for name in RoleName:
            role = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/sluice/{name.value}"
            made = await sts.assume_role(RoleArn=role, RoleSessionName=name.value)
            keys = made["Credentials"]
            sessions.append(
                f"[{profile(name)}]\naws_access_key_id = {keys['AccessKeyId']}\n"
                f"aws_secret_access_key = {keys['SecretAccessKey']}\n"
                f"aws_session_token = {keys['SessionToken']}\n"
            )

    with_client("sts", endpoint, assume)
    (folder / "credentials").write_text("".join(sessions))
    with enable_iam_authentication():
        yield


def drop_statement(endpoint: str, sid: str) -> None:
    """Write the bucket policy without a statement."""

    async def drop(s3: Any) -> None:
        policy = json.loads((await s3.get_bucket_policy(Bucket=BUCKET))["Policy"])
        kept = [one for one in policy["Statement"] if one["Sid"] != sid]
        assert len(kept) == len(policy["Statement"]) - 1
        policy["Statement"] = kept
        await s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))

    with_client("s3", endpoint, drop)
