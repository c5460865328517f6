"""The last line of a failed command names the code under which the error is documented."""

import errno
import os

import pytest

from sluice_cli.shell.output import describe_os_error, describe_with_code
from sluice_gc.errors import GcRefused, RefusalRule
from sluice_protocol.errors import (
    BadUsage,
    ErrorCode,
    InvalidRecord,
    OutcomeUnknown,
    SluiceError,
    StoreDenied,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreDenied("get", "accepted/v1/", "denied: check the role"), ErrorCode.STORE_UNAVAILABLE),
        (InvalidRecord("accepted/v1/a", "no JSON"), ErrorCode.CORRUPT_OBJECT),
        (OutcomeUnknown("create", "accepted/v1/a", 12), ErrorCode.OUTCOME_UNKNOWN),
    ],
)
def test_an_error_names_its_code(error: SluiceError, code: ErrorCode) -> None:
    assert describe_with_code(error) == f"{error}, code=`{code}`"


@pytest.mark.parametrize(
    "error",
    [
        BadUsage("port is taken: choose another one, port=`8080`"),
        GcRefused(RefusalRule.GRACE, "the plan is young"),
    ],
)
def test_bad_usage_and_rules_need_no_code(error: SluiceError) -> None:
    assert describe_with_code(error) == str(error)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space"), (errno.EACCES, "permissions"), (errno.EISDIR, "correct it")],
)
def test_an_error_of_a_file_names_its_remedy_and_path(number: int, remedy: str) -> None:
    shown = describe_os_error(OSError(number, os.strerror(number), "k.pem"))
    assert shown.startswith(f"cannot read or write: {os.strerror(number)}; ")
    assert remedy in shown
    assert shown.endswith(", path=`k.pem`")
