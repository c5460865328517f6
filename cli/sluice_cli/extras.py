"""Which extra installs a missing package, for one line instead of a traceback."""

from collections.abc import Mapping
from typing import Final

from sluice_protocol.distribution import describe_missing_package

PACKAGE_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "aioboto3": ("s3",),
    "aiobotocore": ("s3",),
    "boto3": ("s3",),
    "botocore": ("s3",),
    "delta": ("spark",),
    "deltalake": ("query", "spark"),
    "duckdb": ("query",),
    "cramjam": ("doors",),
    "google": ("doors",),
    "grpc": ("doors",),
    "msgpack": ("doors",),
    "opentelemetry": ("doors",),
    "pandas": ("spark",),
    "plotext": ("query",),
    "policy_sentry": ("policies",),
    "ptars": ("doors",),
    "pyarrow": ("query", "spark"),
    "pyspark": ("spark",),
    "pytz": ("query",),
    "uvloop": ("gateway",),
    "z3": ("policies",),
}
"""The extras of `pyproject.toml` that install each package."""


def describe_missing(error: ImportError, command: str) -> str | None:
    """Return one line that names the extra to install, or None for a package of no extra.

    `error` may be what another library raised because of the failed import. An extra with the name
    of the running command is preferred.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    package = "" if cause is None else (cause.name or "").partition(".")[0]
    extras = PACKAGE_EXTRAS.get(package)
    if extras is None:
        return None
    extra = command if command in extras else extras[0]
    return f"{describe_missing_package(extra, package)}, command=`{command}`"
