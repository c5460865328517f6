"""One source of credentials and connection settings for every client of a bucket.

The adapter, the AWS SDK, and the libraries that read and write the tables of the lake get them
here. So both halves of sluice can use the same sources: keys in the environment or in the shared
files, a profile, a program (`credential_process`), SSO, a web identity, or the metadata of a
container or a machine.

Credentials with an end are renewed before it. Others may be rotated or revoked at any time: after a
refusal that names them they are read again, at most every `REREAD_S`.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from sluice_protocol.clock import Clock
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage, StoreDenied, StoreMisconfigured, StoreUnavailable
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S
from sluice_store.s3.settings import S3Settings

REGION_DEFAULT: Final = "us-east-1"
AGE_S: Final = 15.0
"""How long the libraries of the lake use keys without an expiry before they are read again."""
REREAD_S: Final = 3.0
"""Least time between two readings of credentials that a store refused."""
_NO_CREDENTIALS: Final = (
    "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
)


class FrozenCredentials(msgspec.Struct, frozen=True):
    """Credentials at one point in time."""

    access_key: str
    secret_key: str
    token: str | None = None


@contextmanager
def _errors_named(profile: str | None) -> Iterator[None]:
    from botocore import exceptions  # noqa: PLC0415 - the SDK is an extra

    name = profile or "default"
    try:
        yield
    except (
        exceptions.ProfileNotFound,
        exceptions.ConfigParseError,
        exceptions.ConfigNotFound,
        exceptions.PartialCredentialsError,
        exceptions.InvalidConfigError,
    ) as error:
        raise StoreMisconfigured("credentials", name, f"invalid settings: {error}") from error
    except (exceptions.BotoCoreError, exceptions.ClientError, OSError) as error:
        raise StoreUnavailable("credentials", name, f"no credentials: {error}") from error


class CredentialSource:
    """The credentials of one profile, from the standard sources of AWS; safe between threads."""

    def __init__(self, profile: str | None = None, clock: Clock | None = None) -> None:
        self._profile = profile
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._found: Any = None
        self._read_at_ns = 0

    def read(self) -> FrozenCredentials:
        """Return valid credentials; this may read files, run a program, or use the network."""
        with self._lock, _errors_named(self._profile):
            found = self._found
            if found is None:
                found = self._found = self._load()
                self._read_at_ns = self._clock.monotonic_ns()
        if found is None:
            raise StoreDenied("credentials", self._profile or "default", _NO_CREDENTIALS)
        with _errors_named(self._profile):
            return _freeze(found)

    def read_current(self) -> FrozenCredentials:
        """Return credentials for a client that reports no refusals: those of the last `AGE_S`.

        The libraries of the lake do not say which request was refused, and why.
        """
        used = self.read()
        age_ns = self._clock.monotonic_ns() - self._read_at_ns
        if age_ns > AGE_S * NS_PER_S and not hasattr(self._found, "refresh_needed"):
            self.renew(used)
        return self.read()

    async def get_frozen_credentials(self) -> FrozenCredentials:
        """Return credentials that are valid now, as the SDK requests them."""
        found = self._found
        if found is None or _is_due(found):
            return await asyncio.to_thread(self.read)
        return _freeze(found)

    def renew(self, refused: FrozenCredentials) -> bool:
        """Read credentials again that a store refused; return True if they are others now.

        Several requests may be refused concurrently. Only one of them reads, at most every
        `REREAD_S`, and the others use its result. Credentials that cannot be read now, as in the
        middle of a rotation, stay until the next refusal.
        """
        with self._lock:
            known = self._found
            if known is not None and not _is_due(known) and _freeze(known) != refused:
                return True
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._read_at_ns < REREAD_S * NS_PER_S:
                return False
            self._read_at_ns = now_ns
            try:
                with _errors_named(self._profile):
                    found = self._load()
                    if found is None or _freeze(found) == refused:
                        return False
            except (StoreMisconfigured, StoreUnavailable):
                return False
            self._found = found
            return True

    def _load(self) -> Any:  # noqa: ANN401 - the SDK has no types
        """Return the credentials of a new session, because a session keeps its first ones."""
        return _new_session(self._profile).get_credentials()


def _freeze(found: Any) -> FrozenCredentials:  # noqa: ANN401 - the SDK has no types
    frozen = found.get_frozen_credentials()
    return FrozenCredentials(frozen.access_key, frozen.secret_key, frozen.token)


def _is_due(found: Any) -> bool:  # noqa: ANN401 - the SDK has no types
    """Return True for credentials that the SDK renews with their next use."""
    due = getattr(found, "refresh_needed", None)
    return due is not None and bool(due())


def _new_session(profile: str | None) -> Any:  # noqa: ANN401 - the SDK has no types
    try:
        from botocore.session import Session  # noqa: PLC0415 - the SDK is an extra
    except ImportError as error:
        raise BadUsage(describe_missing_package("s3", error.name)) from error
    return Session(profile=profile)


@lru_cache(maxsize=16)
def _source(profile: str | None, _environment: tuple[tuple[str, str], ...]) -> CredentialSource:
    return CredentialSource(profile)


def credential_source(profile: str | None) -> CredentialSource:
    """Return this process's source of a profile's credentials: one for all clients."""
    return _source(profile, _environment())


def _environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that decide which credentials and settings are found."""
    names = [name for name in os.environ if name.startswith("AWS_") or name == "HOME"]
    return tuple((name, os.environ[name]) for name in sorted(names))


def resolve_settings(settings: S3Settings) -> S3Settings:
    """Return the settings with what the URL leaves open, from the AWS environment and its files.

    These are the endpoint, the region and the certificate authorities. Without this, each library
    would look for them in other places.
    """
    return _resolved(settings, _environment())


@lru_cache(maxsize=32)
def _resolved(settings: S3Settings, environment: tuple[tuple[str, str], ...]) -> S3Settings:
    session = _new_session(settings.profile)
    with _errors_named(settings.profile):
        region = settings.region or session.get_config_variable("region")
        ca_bundle = settings.ca_bundle or session.get_config_variable("ca_bundle")
        endpoint = settings.endpoint or _configured_endpoint(session)
    return replace(
        settings,
        region=region or dict(environment).get("AWS_REGION") or REGION_DEFAULT,
        ca_bundle=ca_bundle or None,
        endpoint=endpoint.rstrip("/") if endpoint else None,
    )


def _configured_endpoint(session: Any) -> str | None:  # noqa: ANN401 - the SDK has no types
    """Return the endpoint of S3 in the environment or the profile.

    Source: docs.aws.amazon.com/sdkref, "Service-specific endpoints".
    """
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    profile = session.get_scoped_config()
    sections = session.full_config.get("services", {})
    services = sections.get(profile.get("services", ""), {}).get("s3", {})
    candidates = (
        os.environ.get("AWS_ENDPOINT_URL_S3"),
        os.environ.get("AWS_ENDPOINT_URL"),
        services.get("endpoint_url") if isinstance(services, dict) else None,
        profile.get("endpoint_url"),
    )
    return next((one for one in candidates if one), None)


def aws_endpoint(profile: str | None, region: str) -> str:
    """Return the endpoint of S3 in a region of AWS, as the SDK's table of endpoints has it.

    A client of the SDK has the same, except for us-east-1 without its region.
    """
    return _aws_endpoint(profile, region, _environment())


@lru_cache(maxsize=16)
def _aws_endpoint(
    profile: str | None, region: str, _environment: tuple[tuple[str, str], ...]
) -> str:
    from botocore.utils import ensure_boolean  # noqa: PLC0415 - the SDK is an extra

    session = _new_session(profile)
    with _errors_named(profile):
        table = session.get_component("endpoint_resolver")
        own = session.get_config_variable("s3") or {}
        variants = {
            name: ensure_boolean(own.get(name) or session.get_config_variable(name) or False)
            for name in ("use_dualstack_endpoint", "use_fips_endpoint")
        }
        # A region that no partition has is taken for one of the first partition.
        found = table.construct_endpoint("s3", region, **variants) or table.construct_endpoint(
            "s3", region, partition_name="aws", **variants
        )
    return f"https://{found['hostname']}"


def lake_credentials(profile: str | None) -> Mapping[str, str]:
    """Return a profile's credentials now, by the names that delta-rs uses."""
    found = credential_source(profile).read_current()
    names = {"AWS_ACCESS_KEY_ID": found.access_key, "AWS_SECRET_ACCESS_KEY": found.secret_key}
    return names | ({"AWS_SESSION_TOKEN": found.token} if found.token else {})
