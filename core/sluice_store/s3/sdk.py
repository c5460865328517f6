"""What goes through the AWS SDK: the session, its credentials, listings and bucket settings."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.errors import StoreDenied, StoreError, StoreMisconfigured, StoreUnavailable
from sluice_protocol.resolution import RefusalReason, RequestRefused, Responded, resolve_read
from sluice_store.s3.errors import refusal_error
from sluice_store.s3.settings import Addressing, S3Settings
from sluice_store.s3.signing import Address, Credentials

REGION_DEFAULT: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdk:
    """An open SDK client, and where and as whom it speaks.

    Attributes:
        client: The S3 client of aioboto3; it has no types.
        address: Where the bucket is.
        credentials: Credentials that renew themselves.
    """

    client: Any
    address: Address
    credentials: Credentials


def choose_addressing(settings: S3Settings) -> Addressing:
    """Gives the addressing style: as set, else as AWS wants it there, or as others know it.

    A bucket with a dot has no certificate of its own, so it stands in the path.
    """
    if settings.addressing is not None:
        return settings.addressing
    own = settings.endpoint is not None or "." in settings.bucket
    return Addressing.PATH if own else Addressing.VIRTUAL


@contextmanager
def sdk_errors(operation: str, key: str) -> Iterator[None]:
    """Lets no exception of the SDK leave the adapter.

    Raises:
        StoreError: In the place of every one of them.
    """
    from botocore import exceptions  # noqa: PLC0415 - the SDK is an extra

    try:
        yield
    except exceptions.ClientError as error:
        raise client_error(error.response, operation, key) from error
    except (exceptions.NoCredentialsError, exceptions.CredentialRetrievalError) as error:
        raise StoreDenied(operation, key, _NO_CREDENTIALS) from error
    except (exceptions.ProfileNotFound, exceptions.ParamValidationError) as error:
        raise StoreMisconfigured(operation, key, f"the settings do not fit: {error}") from error
    except (exceptions.BotoCoreError, OSError) as error:
        raise StoreUnavailable(operation, key, f"no answer: {error}") from error


_NO_CREDENTIALS: Final = (
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
)


def client_error(response: Mapping[str, Any], operation: str, key: str) -> StoreError:
    """Gives the error for an error answer that the SDK raised."""
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", ""))
    verdict = resolve_read(Responded(status=status, code=code))
    refusal = verdict.refusal if isinstance(verdict, RequestRefused) else RefusalReason.REJECTED
    return refusal_error(refusal, operation, key, f"{status} {code} {message}")


@asynccontextmanager
async def open_sdk(settings: S3Settings) -> AsyncIterator[Sdk]:
    """Opens the SDK: one try per request, plain signatures, no checksum trailers.

    Raises:
        StoreDenied: The machine has no credentials.
        StoreMisconfigured: The SDK is not installed, or the settings do not fit.
    """
    try:
        import aioboto3  # noqa: PLC0415 - an extra
        from botocore.config import Config  # noqa: PLC0415
    except ImportError as error:
        raise StoreMisconfigured(
            "open", settings.bucket, "an S3 store needs the extra `s3`: pip install 'sluice[s3]'"
        ) from error
    addressing = choose_addressing(settings)
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.request_timeout_s,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": addressing.value},
    )
    with sdk_errors("open", settings.bucket):
        session = aioboto3.Session(profile_name=settings.profile, region_name=settings.region)
        region = settings.region or session.region_name or REGION_DEFAULT
        credentials = await session.get_credentials()
    if credentials is None:
        raise StoreDenied("open", settings.bucket, _NO_CREDENTIALS)
    async with session.client(
        "s3",
        region_name=region,
        endpoint_url=settings.endpoint,
        verify=settings.ca_bundle,
        config=config,
    ) as client:
        address = Address(
            endpoint=str(client.meta.endpoint_url).rstrip("/"),
            region=region,
            bucket=settings.bucket,
            addressing=addressing,
        )
        yield Sdk(client=client, address=address, credentials=credentials)
