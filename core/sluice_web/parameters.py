"""Query parameters: each is defined once, for the parser and for the OpenAPI description."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from multidict import MultiMapping

from sluice_protocol.errors import BadUsage

_SHOWN_CHARS_MAX: Final = 40
_DIGITS_MAX: Final = 18
_TRUE: Final = frozenset({"true", "1", ""})
_FALSE: Final = frozenset({"false", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParameter:
    """A parameter of free text, or of a form that the service checks itself.

    Attributes:
        name: Its name in the URL.
        repeated: Whether it may be given several times.
    """

    name: str
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> str | None:
        """Return the text, or None where the parameter is absent."""
        return query.get(self.name)

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema."""
        if self.repeated:
            return {"type": "array", "items": {"type": "string"}}
        return {"type": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerParameter:
    """A whole number within bounds.

    Attributes:
        name: Its name in the URL.
        default: The value where it is absent.
        minimum: The smallest value, inclusive; never negative.
        maximum: The largest value, inclusive.
    """

    name: str
    default: int
    maximum: int
    minimum: int = 1
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> int:
        """Return the number.

        Raises:
            BadUsage: The text is no number, or is out of bounds.
        """
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
    """A parameter that is true or false, and false where it is absent.

    Attributes:
        name: Its name in the URL.
    """

    name: str
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> bool:
        """Return the value; a name without a value means true.

        Raises:
            BadUsage: The text is another word.
        """
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
    """A parameter that is one of several words.

    Attributes:
        name: Its name in the URL.
        choices: The words.
        default: The value where it is absent.
    """

    name: str
    choices: tuple[str, ...]
    default: str
    repeated: bool = False

    def read(self, query: Mapping[str, str]) -> str:
        """Return the word.

        Raises:
            BadUsage: The text is none of the words.
        """
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


Parameter = TextParameter | IntegerParameter | FlagParameter | ChoiceParameter


def check_names(query: MultiMapping[str], parameters: Iterable[Parameter]) -> None:
    """Check that a query contains known parameters only, each as often as it may.

    Raises:
        BadUsage: A parameter is unknown, or is repeated where it may not be.
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name in query:
        shown = name[:_SHOWN_CHARS_MAX]
        if name not in known:
            raise BadUsage(f"unknown parameter, parameter=`{shown}`")
        if not known[name].repeated and len(query.getall(name)) > 1:
            raise BadUsage(f"parameter is repeated, parameter=`{shown}`")
