"""A bucket's administration: its configuration, the policies of roles, and harmless test requests.

Nothing here is on the path of a batch. Parts of a configuration are read and written as the JSON
values of the S3 calls. `sluice_policies` decides what they should contain.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sluice_store.s3.settings import S3Settings

if TYPE_CHECKING:
    from sluice_store.s3.sdk import S3Session

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value] | None"

WRONG_SHA256: Final = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
"""A checksum that matches no body: a put that policies allow is rejected for it."""
NO_VERSION: Final = "00000000-0000-4000-8000-000000000000"
LOCKED: Final = {"Mode": "GOVERNANCE", "RetainUntilDate": datetime(2100, 1, 1, tzinfo=UTC)}
NO_ETAG: Final = '"00000000000000000000000000000000"'


def translated_sdk_errors(operation: str, key: str) -> AbstractContextManager[None]:
    """Translate every exception of the SDK, an extra that rendering policies does not need."""
    from sluice_store.s3 import sdk  # noqa: PLC0415 - an extra

    return sdk.sdk_errors(operation, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The calls that read and write one part.

    `field` of the response contains the part; it is empty when the response itself does. A bucket
    without this part responds with the error code `absent`.
    """

    read: str
    write: str
    argument: str
    field: str = ""
    absent: str = ""


CALLS: Final = {
    "versioning": _Call(
        read="get_bucket_versioning",
        write="put_bucket_versioning",
        argument="VersioningConfiguration",
    ),
    "object-lock": _Call(
        read="get_object_lock_configuration",
        write="put_object_lock_configuration",
        argument="ObjectLockConfiguration",
        field="ObjectLockConfiguration",
        absent="ObjectLockConfigurationNotFoundError",
    ),
    "ownership": _Call(
        read="get_bucket_ownership_controls",
        write="put_bucket_ownership_controls",
        argument="OwnershipControls",
        field="OwnershipControls",
        absent="OwnershipControlsNotFoundError",
    ),
    "public-access-block": _Call(
        read="get_public_access_block",
        write="put_public_access_block",
        argument="PublicAccessBlockConfiguration",
        field="PublicAccessBlockConfiguration",
        absent="NoSuchPublicAccessBlockConfiguration",
    ),
    "encryption": _Call(
        read="get_bucket_encryption",
        write="put_bucket_encryption",
        argument="ServerSideEncryptionConfiguration",
        field="ServerSideEncryptionConfiguration",
        absent="ServerSideEncryptionConfigurationNotFoundError",
    ),
    "lifecycle": _Call(
        read="get_bucket_lifecycle_configuration",
        write="put_bucket_lifecycle_configuration",
        argument="LifecycleConfiguration",
        absent="NoSuchLifecycleConfiguration",
    ),
    "notification": _Call(
        read="get_bucket_notification_configuration",
        write="put_bucket_notification_configuration",
        argument="NotificationConfiguration",
    ),
    "replication": _Call(
        read="get_bucket_replication",
        write="put_bucket_replication",
        argument="ReplicationConfiguration",
        field="ReplicationConfiguration",
        absent="ReplicationConfigurationNotFoundError",
    ),
    "bucket-policy": _Call(
        read="get_bucket_policy",
        write="put_bucket_policy",
        argument="Policy",
        field="Policy",
        absent="NoSuchBucketPolicy",
    ),
}
"""Every part, by its name in `sluice policies` (boto3's S3 reference)."""

_NOT_THE_VALUE: Final = ("ResponseMetadata", "TransitionDefaultMinimumObjectSize")


class Trial(StrEnum):
    """A request that shows whether policies allow it, and that changes nothing when they do."""

    PUT = "put"
    COPY = "copy"
    MULTIPART = "multipart"
    DELETE = "delete"
    DELETE_VERSION = "delete-version"
    GET = "get"
    CONFIGURE = "configure"
    LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminResponse:
    """The response of a store to a trial; `code` is empty on success."""

    status: int
    code: str

    @property
    def refused(self) -> bool:
        """Whether a policy denied it, rather than the deliberate error in the request.

        A 403 with another code is about the caller's keys or clock, or is not the store's.
        """
        return self.status == 403 and self.code == "AccessDenied"  # noqa: PLR2004 - RFC 9110 section 15.5.4


class Administration:
    """One bucket and the roles that use it, with the permissions of one caller."""

    def __init__(self, s3: "S3Session", iam: Any, bucket: str) -> None:  # noqa: ANN401 - the SDK is untyped
        self._s3: Any = s3.client
        self._iam = iam
        self._bucket = bucket

    async def read(self, part: str) -> Value:
        """Read one part of the configuration; None when the bucket does not have it."""
        call = CALLS[part]
        with translated_sdk_errors("read", part):
            try:
                response = await getattr(self._s3, call.read)(Bucket=self._bucket)
            except self._s3.exceptions.ClientError as error:
                if error.response["Error"]["Code"] == call.absent:
                    return None
                raise
        if call.field:
            found: Value = response[call.field]
            return found
        return {name: value for name, value in response.items() if name not in _NOT_THE_VALUE}

    async def write(self, part: str, value: Value) -> None:
        """Replace one part of the configuration."""
        call = CALLS[part]
        with translated_sdk_errors("write", part):
            await getattr(self._s3, call.write)(Bucket=self._bucket, **{call.argument: value})

    async def read_role_policy(self, role: str, name: str) -> str | None:
        """Read an inline policy of a role; None when it has none with this name."""
        with translated_sdk_errors("read", role):
            try:
                response = await self._iam.get_role_policy(RoleName=role, PolicyName=name)
            except self._iam.exceptions.NoSuchEntityException:
                return None
        document = response["PolicyDocument"]
        return document if isinstance(document, str) else json.dumps(document)

    async def write_role_policy(self, role: str, name: str, document: str) -> None:
        """Write an inline policy of a role."""
        with translated_sdk_errors("write", role):
            await self._iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=document)

    async def attempt(self, trial: Trial, key: str, headers: Mapping[str, str]) -> AdminResponse:
        """Send a request that does nothing even when it is allowed.

        A put has a checksum that matches no body. A delete has a condition that no object meets. A
        copy has a source that does not exist, and a lock has no object. A multipart upload is
        aborted immediately. `key` is the whole key, and `headers` have the SDK's names of
        arguments.
        """
        with translated_sdk_errors("attempt", key):
            try:
                await self._send(trial, {"Bucket": self._bucket, **headers}, key)
            except self._s3.exceptions.ClientError as error:
                response = error.response
                if not response["Error"]["Code"] or response["Error"]["Code"].isdigit():
                    raise  # not the store's
                status = int(response["ResponseMetadata"]["HTTPStatusCode"])
                return AdminResponse(status=status, code=str(response["Error"]["Code"]))
        return AdminResponse(status=200, code="")

    async def _send(  # noqa: C901 - one case for each trial
        self, trial: Trial, call: Mapping[str, Any], key: str
    ) -> None:
        match trial:
            case Trial.PUT:
                await self._s3.put_object(Key=key, Body=b"x", ChecksumSHA256=WRONG_SHA256, **call)
            case Trial.COPY:
                source = {"Bucket": self._bucket, "Key": f"{key}.no-such-source"}
                await self._s3.copy_object(Key=key, CopySource=source, **call)
            case Trial.MULTIPART:
                made = await self._s3.create_multipart_upload(Key=key, **call)
                upload = made["UploadId"]
                await self._s3.abort_multipart_upload(Key=key, UploadId=upload, **call)
            case Trial.DELETE:
                await self._s3.delete_object(Key=key, IfMatch=NO_ETAG, **call)
            case Trial.DELETE_VERSION:
                await self._s3.delete_object(Key=key, VersionId=NO_VERSION, **call)
            case Trial.GET:
                found = await self._s3.get_object(Key=key, **call)
                found["Body"].close()
            case Trial.LOCK:
                await self._s3.put_object_retention(Key=key, Retention=LOCKED, **call)
            case Trial.CONFIGURE:
                enabled = {"Status": "Enabled"}
                await self._s3.put_bucket_versioning(VersioningConfiguration=enabled, **call)


@asynccontextmanager
async def open_administration(settings: S3Settings) -> AsyncIterator[Administration]:
    """Open a bucket's administration with the credentials of a profile, or the default ones."""
    from sluice_store.s3.sdk import open_sdk  # noqa: PLC0415 - an extra

    async with AsyncExitStack() as stack:
        s3 = await stack.enter_async_context(open_sdk(settings))
        import aioboto3  # noqa: PLC0415 - an extra, which `open_sdk` found installed

        with translated_sdk_errors("open", settings.bucket):
            session = aioboto3.Session(profile_name=settings.profile)
        iam = await stack.enter_async_context(
            session.client(
                "iam",
                region_name=s3.client.meta.region_name,
                endpoint_url=settings.endpoint,
                verify=settings.ca_bundle,
            )
        )
        yield Administration(s3, iam, settings.bucket)
