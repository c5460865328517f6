"""What uses the AWS SDK: the session, its credentials, versions, bucket settings, and opening."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import (
    BadUsage,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.exchange_verdicts import (
    CREDENTIAL_CODES,
    RefusalReason,
    RequestRefused,
    Responded,
    Succeeded,
    resolve_read,
)
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store.port import IncarnationPage, ListedIncarnation, ListedObject, ListPage, Versioning
from sluice_store.replication import ReplicationRule, ReplicationRules
from sluice_store.s3.connection import open_transport
from sluice_store.s3.credentials import (
    REGION_DEFAULT,
    CredentialSource,
    FrozenCredentials,
    aws_endpoint,
    credential_source,
    resolve_settings,
)
from sluice_store.s3.exchange import (
    S3Request,
    S3Transport,
    datetime_ns,
    parse_http_date_ns,
    refusal_error,
)
from sluice_store.s3.settings import S3Settings, choose_addressing
from sluice_store.s3.signing import BucketAddress
from sluice_store.s3.store import S3Store, names_bucket, parse_versioning, read_pages


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Session:
    """An open SDK client (aioboto3, without types), and credentials that renew."""

    client: Any
    credentials: CredentialSource

    async def call(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - the SDK has no types
        """Call a method of the client, as `call_renewing` does."""
        return await call_renewing(self.credentials, getattr(self.client, name), **arguments)


async def call_renewing(credentials: CredentialSource, method: Any, **arguments: Any) -> Any:  # noqa: ANN401 - the SDK has no types
    """Call a method of the SDK, a second time if its credentials were refused and are new now."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - the SDK is an extra

    used = await credentials.get_frozen_credentials()
    try:
        return await method(**arguments)
    except ClientError as error:
        refused = error.response.get("Error", {}).get("Code") in CREDENTIAL_CODES
        if not refused or not await asyncio.to_thread(credentials.renew, used):
            raise
    return await method(**arguments)


@contextmanager
def sdk_errors(operation: str, key: str) -> Iterator[None]:  # noqa: C901 - a line per cause
    """Translate every exception of the SDK inside the context."""
    from botocore import exceptions  # noqa: PLC0415 - the SDK is an extra
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    try:
        yield
    except exceptions.ClientError as error:
        raise client_error(error.response, operation, key) from error
    except (exceptions.ProfileNotFound, exceptions.ParamValidationError) as error:
        raise StoreMisconfigured(operation, key, f"invalid settings: {error}") from error
    except ResponseParserError as error:  # of a proxy, or cut off; it is no BotoCoreError
        raise refusal_error(RefusalReason.FOREIGN, operation, key, _line(error)) from error
    except RecursionError as error:  # the SDK repeats itself if each response is a 301
        detail = "301 without a region of the bucket"
        raise refusal_error(RefusalReason.FOREIGN, operation, key, detail) from error
    except exceptions.SSLError as error:
        raise refusal_error(RefusalReason.UNTRUSTED, operation, key, _line(error)) from error
    except exceptions.ConnectTimeoutError as error:
        raise refusal_error(RefusalReason.CONNECT_TIMEOUT, operation, key, _line(error)) from error
    except exceptions.EndpointConnectionError as error:
        raise refusal_error(_connect_cause(error), operation, key, _line(error)) from error
    except (exceptions.BotoCoreError, OSError) as error:
        raise refusal_error(RefusalReason.NO_RESPONSE, operation, key, _line(error)) from error


def _connect_cause(error: Any) -> RefusalReason:  # noqa: ANN401 - the SDK has no types
    inner = error.kwargs.get("error")
    inner = getattr(inner, "os_error", inner)
    if isinstance(inner, socket.gaierror):
        return RefusalReason.NAME_UNKNOWN
    refused = isinstance(inner, ConnectionRefusedError)
    return RefusalReason.CONNECTION_REFUSED if refused else RefusalReason.UNREACHABLE


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def client_error(response: Mapping[str, Any], operation: str, key: str) -> StoreError:
    """Return the error for an error response that the SDK raised."""
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", ""))
    if not code or code.isdigit():  # the SDK found no error document and uses the status
        detail = f"{status} without the error document of S3"
        return refusal_error(RefusalReason.FOREIGN, operation, key, detail)
    verdict = resolve_read(Responded(status=status, code=code))
    refusal = verdict.refusal if isinstance(verdict, RequestRefused) else RefusalReason.REJECTED
    return refusal_error(refusal, operation, key, f"{status} {code} {message}")


def parse_timestamp(text: Any) -> datetime:  # noqa: ANN401 - whatever a response contains
    """Parse a time in a response of the SDK, whose own parser guesses the format and is slow."""
    if isinstance(text, str) and text.endswith("Z"):
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    from botocore.utils import parse_timestamp as parse_any  # noqa: PLC0415 - the SDK is an extra

    parsed: datetime = parse_any(text)
    return parsed


@lru_cache(maxsize=4)
def _shared_models(data_path: str | None) -> Any:  # noqa: ANN401 - the SDK has no types
    """Return the loader of the SDK's service models, which parses each file once a process.

    A session creates a loader, so that each opening of a store would parse 1.5 MB of JSON again.
    """
    from botocore.loaders import Loader, create_loader  # noqa: PLC0415 - the SDK is an extra

    class SharedLoader(Loader):  # type: ignore[misc] # the SDK has no types
        @property
        def search_paths(self) -> list[str]:
            """Return a copy: each session appends a folder that S3 does not need."""
            return list(super().search_paths)

    paths = create_loader(data_path).search_paths
    return SharedLoader(extra_search_paths=list(paths), include_default_search_paths=False)


@asynccontextmanager
async def open_sdk(settings: S3Settings) -> AsyncIterator[S3Session]:
    """Open the SDK: one try per request, plain signatures, no checksum trailers."""
    try:
        import aioboto3  # noqa: PLC0415 - an extra
        from aiobotocore.session import get_session  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
    except ImportError as error:
        missing = describe_missing_package("s3", error.name)
        raise BadUsage(f"{missing}, bucket=`{settings.bucket}`") from error
    settings = await asyncio.to_thread(resolve_settings, settings)
    credentials = credential_source(settings.profile)
    first = await credentials.get_frozen_credentials()
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.request_timeout_s,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": choose_addressing(settings).value},
    )
    with sdk_errors("open", settings.bucket):
        base = get_session()
        models = _shared_models(base.get_config_variable("data_path"))
        base.register_component("data_loader", models)
        parsers = base.get_component("response_parser_factory")
        parsers.set_parser_defaults(timestamp_parser=parse_timestamp)
        base.register_component("credential_provider", shared_credentials(credentials, first))
        session = aioboto3.Session(botocore_session=base, profile_name=settings.profile)
    async with session.client(
        "s3",
        region_name=settings.region or REGION_DEFAULT,
        endpoint_url=settings.endpoint,
        verify=settings.ca_bundle,
        config=config,
    ) as client:
        yield S3Session(client=client, credentials=credentials)


def bucket_address(settings: S3Settings) -> BucketAddress:
    """Return the address of the bucket of resolved settings."""
    region = settings.region or REGION_DEFAULT
    return BucketAddress(
        endpoint=settings.endpoint or aws_endpoint(settings.profile, region),
        region=region,
        bucket=settings.bucket,
        addressing=choose_addressing(settings),
    )


class OpenedWhenCalled:
    """The SDK's client of a bucket, which is opened by its first call.

    Opening it takes 0.1 s of processor time, and objects are read, written and listed without it.
    """

    def __init__(self, settings: S3Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._opening = asyncio.Lock()
        self._session: S3Session | None = None

    async def call(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - the SDK has no types
        """Call a method of the client, as `call_renewing` does."""
        async with self._opening:
            if self._session is None:
                opening = open_sdk(self._settings)
                self._session = await self._stack.enter_async_context(opening)
        return await self._session.call(name, **arguments)


def shared_credentials(source: CredentialSource, first: FrozenCredentials) -> Any:  # noqa: ANN401 - the SDK has no types
    """Return a source as the SDK's credentials, and as what finds them."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - the SDK is an extra

    class Shared(AioCredentials):  # type: ignore[misc] # the SDK has no types
        async def load_credentials(self) -> "Shared":
            """Return itself: the SDK calls this on its finder of credentials."""
            return self

        async def get_frozen_credentials(self) -> FrozenCredentials:
            """Return credentials that are valid now; the SDK calls this for each request."""
            return await source.get_frozen_credentials()

    return Shared(first.access_key, first.secret_key, first.token)


_NO_RULES: Final = "ReplicationConfigurationNotFoundError"
_NOT_READABLE: Final = frozenset({400, 403, 404, 405, 501})
"""Statuses for no right, another region or account, no bucket, or a server without replication."""


_NO_LOCK: Final = "ObjectLockConfigurationNotFoundError"


class SdkBucket:
    """Listings and settings of one bucket, with the deployment's prefix removed from keys."""

    def __init__(
        self, name: str, call: Callable[..., Awaitable[Any]], transport: S3Transport, prefix: str
    ) -> None:
        """Use `call` for what only the SDK sends."""
        self.name = name
        self._call = call
        self._transport = transport
        self._prefix = prefix

    async def read_versioning(self) -> Versioning:
        """Read whether the bucket keeps versions now."""
        request = S3Request(method="GET", key="", headers={}, query=(("versioning", ""),))
        exchange = await self._transport.send(request)
        match resolve_read(exchange.seen):
            case Succeeded():
                state = parse_versioning(exchange.body)
            case RequestRefused(refusal=refusal):
                raise refusal_error(refusal, "read_versioning", self.name, exchange.detail)
            case _:
                state = None
        if state is None:
            detail = "the response is no versioning configuration"
            raise refusal_error(RefusalReason.FOREIGN, "read_versioning", self.name, detail)
        return state

    async def read_replication(self, bucket: str) -> ReplicationRules | None:
        """Return the replication rules of a bucket, or None if they cannot be read."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - the SDK is an extra

        with sdk_errors("read_replication", bucket):
            try:
                response = await self._call("get_bucket_replication", Bucket=bucket)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") == _NO_RULES:
                    return ()
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                if status in _NOT_READABLE:
                    return None
                raise
        if "ReplicationConfiguration" not in response:
            detail = "the response is no replication configuration"
            raise refusal_error(RefusalReason.FOREIGN, "read_replication", bucket, detail)
        return tuple(map(_rule, response["ReplicationConfiguration"].get("Rules", [])))

    async def locks_by_default(self) -> bool | None:
        """Return True if Object Lock keeps each new version; None if that cannot be read."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - the SDK is an extra

        with sdk_errors("locks_by_default", self.name):
            try:
                found = await self._call("get_object_lock_configuration", Bucket=self.name)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") == _NO_LOCK:
                    return False
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                if status in _NOT_READABLE:
                    return None
                raise
        rule = found.get("ObjectLockConfiguration", {}).get("Rule", {})
        return bool(rule.get("DefaultRetention"))

    async def objects(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[ListPage]:
        """Yield pages of current objects."""
        after = self._prefix + start_after if start_after else ""
        pages = read_pages(
            self._transport, self._prefix + prefix, after, parse_timestamp, self._prefix, self.name
        )
        async with aclosing(pages):
            async for page in pages:
                kept = tuple(one for one in page.objects if _inside(one.key, start_after, end_at))
                last = page.token is None or _past(page.objects[-1:], end_at)
                yield ListPage(objects=kept, date_ns=page.date_ns, last=last)
                if last:
                    return

    async def incarnations(
        self, prefix: str, start_after: str, end_at: str | None
    ) -> AsyncIterator[IncarnationPage]:
        """Yield pages of versions and delete markers."""
        query = {"Bucket": self.name, "Prefix": self._prefix + prefix}
        if start_after:
            query["KeyMarker"] = self._prefix + start_after
        before: set[tuple[str, str]] = set()
        while True:
            with sdk_errors("list_incarnations", prefix):
                response = await self._call("list_object_versions", **query)
            self._check_versions(response, query["Prefix"], prefix)
            found = [self._incarnation(one, marker=False) for one in response.get("Versions", [])]
            marks = [
                self._incarnation(one, marker=True) for one in response.get("DeleteMarkers", [])
            ]
            both = sorted([*found, *marks], key=_newest_first)
            kept = tuple(
                one
                for one in both
                if _inside(one.key, start_after, end_at)
                and (one.key, one.incarnation)
                not in before  # versitygw repeats a version at the edge of a page
            )
            before = {(one.key, one.incarnation) for one in both}
            more = bool(response.get("IsTruncated")) and not _past(both[-1:], end_at)
            yield IncarnationPage(incarnations=kept, date_ns=_date_ns(response), last=not more)
            if not more:
                return
            query = self._following(query, response, prefix)

    def _check_versions(self, response: Mapping[str, Any], wanted: str, shown: str) -> None:
        """Raise unless a response is a listing of this bucket below a prefix."""
        rows = [*response.get("Versions", []), *response.get("DeleteMarkers", [])]
        reason = ""
        if "IsTruncated" not in response:
            reason = "the response is no listing"
        elif not names_bucket(response.get("Name"), self.name):
            reason = f"it is a listing of another bucket, {response['Name']}"
        elif any(not str(one["Key"]).startswith(wanted) for one in rows):
            reason = "it is a listing of another prefix"
        if reason:
            raise refusal_error(RefusalReason.FOREIGN, "list_incarnations", shown, reason)

    def _following(
        self, query: Mapping[str, str], response: Mapping[str, Any], prefix: str
    ) -> dict[str, str]:
        """Return the query of the next page, which must begin at another key."""
        names = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
        # A page may end between two keys; then the response names no version.
        place = {name: str(response[found]) for name, found in names.items() if response.get(found)}
        before = {name: text for name, text in query.items() if name in names}
        if "KeyMarker" not in place or place == before:
            reason = "the store continues the listing at the same place again, or nowhere"
            raise StoreUnavailable("list_incarnations", prefix, reason)
        return {name: text for name, text in query.items() if name not in names} | place

    def _key(self, entry: Mapping[str, Any]) -> ObjectKey:
        return ObjectKey(str(entry["Key"]).removeprefix(self._prefix))

    def _incarnation(self, entry: Mapping[str, Any], *, marker: bool) -> ListedIncarnation:
        return ListedIncarnation(
            key=self._key(entry),
            incarnation=ObjectVersion(entry.get("VersionId") or "null"),
            current=bool(entry["IsLatest"]),
            marker=marker,
            size_bytes=0 if marker else int(entry["Size"]),
            etag=ETag("" if marker else entry["ETag"]),
            last_modified_ns=datetime_ns(entry["LastModified"]),
        )


def _rule(entry: Mapping[str, Any]) -> ReplicationRule:
    """Return a rule; one that filters by tags may apply to any key of its prefix."""
    chosen = entry.get("Filter", {})
    prefix = entry.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix")
    return ReplicationRule(
        target=str(entry["Destination"]["Bucket"]).rpartition(":")[2],
        prefix=prefix or "",
        enabled=entry.get("Status") == "Enabled",
    )


def _inside(key: str, start_after: str, end_at: str | None) -> bool:
    raw = key.encode()
    return raw > start_after.encode() and (end_at is None or raw <= end_at.encode())


def _past(last: Sequence[ListedObject | ListedIncarnation], end_at: str | None) -> bool:
    """Return True when a page is beyond the end, so that no further page is needed."""
    return end_at is not None and any(one.key.encode() > end_at.encode() for one in last)


def _newest_first(one: ListedIncarnation) -> tuple[bytes, bool, int]:
    """Return the sort key of a page; the sort is stable, so equal times keep the store's order."""
    return one.key.encode(), not one.current, -one.last_modified_ns


def _date_ns(response: Mapping[str, Any]) -> UnixNs:
    headers = response["ResponseMetadata"]["HTTPHeaders"]
    return parse_http_date_ns(headers.get("date", ""))


@asynccontextmanager
async def open_s3_store(settings: S3Settings) -> AsyncIterator[S3Store]:
    """Open one bucket and prefix as a store; no request is sent before the first verb."""
    settings = await asyncio.to_thread(resolve_settings, settings)
    credentials = credential_source(settings.profile)
    await credentials.get_frozen_credentials()  # without any, the store cannot be opened
    address = await asyncio.to_thread(bucket_address, settings)
    async with AsyncExitStack() as stack:
        opening = open_transport(settings, address, credentials)
        transport = await stack.enter_async_context(opening)
        sdk = OpenedWhenCalled(settings, stack)
        bucket = SdkBucket(settings.bucket, sdk.call, transport, settings.prefix)
        yield S3Store(transport, bucket, settings.prefix)
