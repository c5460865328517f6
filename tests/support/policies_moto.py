"""A bucket and the roles of a deployment on moto, which stores documents and enforces none."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aioboto3
from support.moto_server import moto_server
from support.policies_live import ADMIN_PROFILE, BUCKET

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


def drop_statement(endpoint: str, sid: str) -> None:
    """Write the bucket policy without a statement."""

    async def drop(s3: Any) -> None:
        policy = json.loads((await s3.get_bucket_policy(Bucket=BUCKET))["Policy"])
        kept = [one for one in policy["Statement"] if one["Sid"] != sid]
        assert len(kept) == len(policy["Statement"]) - 1
        policy["Statement"] = kept
        await s3.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))

    with_client("s3", endpoint, drop)
