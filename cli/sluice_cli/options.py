"""Options that several commands share."""

from typing import Annotated, Final

from cyclopts import Parameter

from sluice_store.url import parse_local_path

STORE_DEFAULT: Final = "file://./.sluice"


def check_store_exists(kind: object, url: object) -> None:
    """Refuse a directory that does not exist: a typing error would create an empty store.

    Raises:
        ValueError: There is no such directory.
    """
    del kind
    if isinstance(url, str) and url.startswith("file://") and not parse_local_path(url).is_dir():
        raise ValueError(f"no store at this path: run `sluice init --store {url}` first")


_NAMED: Final = Parameter(
    name="--store",
    env_var="SLUICE_STORE",
    help="file:///path or s3://bucket/prefix?endpoint=…&region=….",
)

NewStoreUrl = Annotated[str, _NAMED]
"""The acceptance authority: a bucket, or a directory, which is created if it does not exist."""

StoreUrl = Annotated[str, _NAMED, Parameter(validator=check_store_exists)]
"""The acceptance authority: a bucket and prefix, or an existing directory."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs.")]
