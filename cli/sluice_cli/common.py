"""Options that several commands share."""

from typing import Annotated, Final

from cyclopts import Parameter

STORE_DEFAULT: Final = "file://./.sluice"

StoreUrl = Annotated[
    str,
    Parameter(
        name="--store",
        env_var="SLUICE_STORE",
        help="file:///path or s3://bucket/prefix?endpoint=…&region=….",
    ),
]
"""The acceptance authority: a directory, or a bucket and a prefix."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs.")]
"""Whether to print JSON."""
