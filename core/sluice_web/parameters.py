"""Query parameters, each defined once for the parser and for OpenAPI, and pages of long lists."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec
from multidict import MultiMapping

from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.identity import check_id
from sluice_protocol.units import AGENT_ID_BYTES_MAX

TEXT_CHARS_MAX: Final = 1000
"""Most characters of a text, unless its parameter sets another limit."""
_SHOWN_CHARS_MAX: Final = 40
_DIGITS_MAX: Final = 18
_TRUE: Final = frozenset({"true", "1", ""})
_FALSE: Final = frozenset({"false", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParameter:
    """A parameter of free text, or of a form that the service checks itself."""

    name: str
    repeated: bool = False
    chars_max: int = TEXT_CHARS_MAX

    def read(self, query: Mapping[str, str]) -> str | None:
        """Return the text, or None where the parameter is absent."""
        text = query.get(self.name)
        if text is not None:
            self.check(text)
        return text

    def check(self, text: str) -> None:
        """Check the length of a value."""
        if len(text) > self.chars_max:
            raise BadUsage(f"{self.name} must have at most {self.chars_max} characters")

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        one = {"type": "string", "maxLength": self.chars_max}
        return {"type": "array", "items": one} if self.repeated else one


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParameter:
    """The id of one agent, by the rules of `sluice_protocol.identity`."""

    name: str = "agent"
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> str | None:
        """Return the id, or None where the parameter is absent."""
        text = query.get(self.name)
        if text is None:
            return None
        try:
            check_id("agent_id", text, AGENT_ID_BYTES_MAX)
        except InvalidFrame as error:
            shown = text[:_SHOWN_CHARS_MAX]
            raise BadUsage(f"{error.reason}, {self.name}=`{shown}`") from error
        return text

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        return {"type": "string", "minLength": 1, "maxLength": AGENT_ID_BYTES_MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerParameter:
    """A whole number within bounds, which are inclusive and never negative."""

    name: str
    default: int
    maximum: int
    minimum: int = 1
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> int:
        """Return the number."""
        text = query.get(self.name)
        if text is None:
            return self.default
        number = int(text[:_DIGITS_MAX]) if text.isascii() and text.isdecimal() else -1
        if not self.minimum <= number <= self.maximum or len(text) > _DIGITS_MAX:
            raise BadUsage(
                f"{self.name} must be a number from {self.minimum} to {self.maximum},"
                f" {self.name}=`{text[:_SHOWN_CHARS_MAX]}`"
            )
        return number

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer", "default": self.default, **bounds}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagParameter:
    """A parameter that is true or false, and false where it is absent."""

    name: str
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> bool:
        """Return the value; a name without a value means true."""
        text = query.get(self.name, "false")
        if text not in _TRUE and text not in _FALSE:
            shown = text[:_SHOWN_CHARS_MAX]
            raise BadUsage(f"{self.name} must be true or false, {self.name}=`{shown}`")
        return text in _TRUE

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        return {"type": "boolean", "default": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParameter:
    """A parameter that is one of several words."""

    name: str
    choices: tuple[str, ...]
    default: str
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> str:
        """Return the word."""
        text = query.get(self.name, self.default)
        if text not in self.choices:
            raise BadUsage(
                f"{self.name} must be one of {', '.join(self.choices)},"
                f" {self.name}=`{text[:_SHOWN_CHARS_MAX]}`"
            )
        return text

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        return {"enum": list(self.choices), "default": self.default}


Parameter = TextParameter | AgentParameter | IntegerParameter | FlagParameter | ChoiceParameter


def check_names(query: MultiMapping[str], parameters: Iterable[Parameter]) -> None:
    """Check that a query contains known parameters only, each as often as it may."""
    known = {parameter.name: parameter for parameter in parameters}
    for name in query:
        shown = name[:_SHOWN_CHARS_MAX]
        if name not in known:
            raise BadUsage(f"unknown parameter, parameter=`{shown}`")
        if not known[name].repeated and len(query.getall(name)) > 1:
            raise BadUsage(f"parameter is repeated, parameter=`{shown}`")


AFTER: Final = TextParameter(name="after")
"""The cursor: `next` of the page before."""

_Item = TypeVar("_Item")


class Page(msgspec.Struct, Generic[_Item], frozen=True, kw_only=True):
    """A page in key order; `next` is null on the last page."""

    items: tuple[_Item, ...]
    next: str | None


def read_cursor(query: Mapping[str, str], prefix: str) -> str:
    """Return the cursor of a query, which must have `prefix`; empty for the first page."""
    after = AFTER.read(query) or ""
    if after and not after.startswith(prefix):
        raise BadUsage(f"after must be the `next` of an earlier page, after=`{after[:80]}`")
    return after
