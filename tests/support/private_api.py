"""Checks of private or undocumented library names; a failure states what to do."""

import inspect
from collections.abc import Callable
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from sluice_protocol.distribution import DISTRIBUTION


def expect_name(library: str, owner: object, name: str, *, used_in: str) -> object:
    """Return an attribute, or fail with the name that the library no longer has."""
    found = inspect.getattr_static(owner, name, None)
    if found is None:
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
        pytest.fail(
            f"{library} {version(library)} has no `{where}.{name}` any more: change {used_in},"
            f" then raise the limit of {library} in pyproject.toml"
        )
    return found


def expect_call(
    library: str, function: Callable[..., object], *args: object, used_in: str, **named: object
) -> None:
    """Fail when a function no longer accepts the arguments that the product passes."""
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError as error:
        pytest.fail(
            f"{library} {version(library)} changed the arguments of `{function.__qualname__}`"
            f" ({error}): change {used_in}, then raise the limit of {library} in pyproject.toml"
        )


def expect_limited(library: str, *, used_in: str) -> None:
    """Fail when pyproject.toml does not limit a library, or the installed one is outside."""
    found = [one for one in map(Requirement, requires(DISTRIBUTION) or ()) if one.name == library]
    limits = [spec for one in found for spec in one.specifier if spec.operator in {"<", "==", "~="}]
    if not limits:
        pytest.fail(
            f"pyproject.toml does not limit {library} to tested versions: {used_in} uses private"
            " names of it, so add an upper bound"
        )
    if not all(one.specifier.contains(version(library)) for one in found):
        pytest.fail(f"{library} {version(library)} is outside the tested versions, see {used_in}")
