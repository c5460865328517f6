"""The plain texts that every match of an RE2 pattern contains, by which index chunks are searched.

A part of a pattern is a list of alternatives. An alternative is a sequence of plain texts with
anything between them, so the last text of a part and the first one of the next part join.
"""

import re
from dataclasses import dataclass, field
from typing import Final

ALTERNATIVES_MAX: Final = 64
"""A part with more of them may contain anything."""
_UNSURE: Final = re.compile(r"\\[QpPxCoO0-9]")
"""Quotes, classes by name and numbered characters are not analysed."""
_TOKEN: Final = re.compile(
    r"(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])"
    r"|(?P<count>(?:[*+?]|\{\d*(?:,\d*)?\})\??)"
    r"|(?P<open>\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z-]*)(?P<alone>[:)])))?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|\\(?P<escaped>[^\w\s])"
    r"|(?P<other>\\.|[.^$\n])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_AT_LEAST_ONCE: Final = re.compile(r"\+|\{0*[1-9]")

Alternatives = tuple[tuple[str, ...], ...]
_EMPTY: Final[Alternatives] = (("",),)
_ANYTHING: Final[Alternatives] = (("", ""),)


@dataclass(frozen=True, slots=True)
class TextCondition:
    """A text must contain all texts of at least one alternative, with or without regard to case."""

    alternatives: Alternatives
    ignore_case: bool = False


def condition_of(pattern: str, *, ignore_case: bool = False) -> TextCondition:
    """Return what every text contains that matches an RE2 pattern."""
    if _UNSURE.search(pattern):
        return TextCondition(((),), ignore_case)
    groups = [_Group()]
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            ignore_case = ignore_case or "i" in (token["flags"] or "")
            if token["alone"] != ")":
                groups.append(_Group())
        elif token["close"] and len(groups) > 1:
            inner = groups.pop()
            groups[-1].parts.append(inner.alternatives())
        else:
            groups[-1].add(token)
    if len(groups) > 1:  # does not compile
        return TextCondition(((),), ignore_case)
    texts = (tuple(text for text in one if text) for one in groups[0].alternatives())
    return TextCondition(tuple(dict.fromkeys(texts)), ignore_case)


@dataclass(slots=True)
class _Group:
    """An open group: its finished alternatives, and the parts of the current one."""

    done: Alternatives = ()
    parts: list[Alternatives] = field(default_factory=list)

    def add(self, token: re.Match[str]) -> None:
        letter = token["plain"] or token["escaped"]
        if token["bar"]:
            self.done, self.parts = (*self.done, *_joined(self.parts)), []
        elif token["count"] and self.parts:
            if not _AT_LEAST_ONCE.match(token["count"]):
                self.parts.pop()
            self.parts.append(_ANYTHING)
        else:
            self.parts.append(_ANYTHING if letter is None else ((letter,),))

    def alternatives(self) -> Alternatives:
        found = (*self.done, *_joined(self.parts))
        return found if len(found) <= ALTERNATIVES_MAX else _ANYTHING


def _joined(parts: list[Alternatives]) -> Alternatives:
    """Return the alternatives of parts that follow each other."""
    found = _EMPTY
    for part in parts:
        if len(found) * len(part) > ALTERNATIVES_MAX:
            part = _ANYTHING  # noqa: PLW2901 - the rest may still contain plain texts
        found = tuple((*a[:-1], a[-1] + b[0], *b[1:]) for a in found for b in part)
    return found
