"""Options that several commands share."""

from typing import Annotated, Final

from cyclopts import Parameter

from sluice_store.url import parse_local_path

STORE_DEFAULT: Final = "file://./.sluice"


def _must_stand(kind: object, url: object) -> None:
    """Refuses a directory that is not there: a typing error would become an empty store."""
    del kind
    if isinstance(url, str) and url.startswith("file://") and not parse_local_path(url).is_dir():
        raise ValueError(f"no store stands there: run `sluice init --store {url}` first")


_NAMED: Final = Parameter(
    name="--store",
    env_var="SLUICE_STORE",
    help="file:///path or s3://bucket/prefix?endpoint=…&region=….",
)

NewStoreUrl = Annotated[str, _NAMED]
"""The acceptance authority: a directory, which is made when it is not there, or a bucket."""

StoreUrl = Annotated[str, _NAMED, Parameter(validator=_must_stand)]
"""The acceptance authority: a directory that stands, or a bucket and a prefix."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs.")]
"""Whether to print JSON."""
