"""Options that several commands share."""

from typing import Annotated, Final

from cyclopts import Parameter

from sluice_cli.existing_directory import EXISTING_STORE
from sluice_protocol.store_backends import URL_FORMS

_NAMED: Final = Parameter(
    name="--store",
    env_var="SLUICE_STORE",
    help=f"{URL_FORMS}.",
)

NewStoreUrl = Annotated[str, _NAMED]
"""The acceptance authority: a bucket, or a directory, which is created if it does not exist."""

StoreUrl = Annotated[str, _NAMED, EXISTING_STORE]
"""The acceptance authority: a bucket and prefix, or an existing directory."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs.")]
