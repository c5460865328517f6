"""A finite set of strings that represents all strings with respect to a set of patterns.

Two strings are equivalent when the same patterns match both. `representatives_for` returns at
least one string of each equivalence class, so a query over every string becomes a query over these
strings. (z3's own theory of strings also proves the rendered documents, but times out when it
searches for a string that violates a wrong one: `docs/adr/0040-policies-and-their-proof.md`.)

For exact texts and prefixes, the representatives are each literal, and each literal followed by one
character with which no other literal continues. Proof: let `L` be the longest literal that a string
starts with. The string is either `L`, or continues as no literal does, and is then equivalent to
`L` with that character. All other patterns are decided by running them in parallel as automata.
"""

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Final

from sluice_policies.errors import UnsupportedPolicy
from sluice_policies.evaluate import glob_matches

_FRESH: Final = "xyz0123456789abcdefghijklmnopqrstuvw-_.+=~ABCDEFGHIJKLMNOPQRSTUVWXYZ!#%&'@,;:"
STATES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """An exact text, or an IAM pattern.

    Attributes:
        text: The text or pattern.
        exact: Whether `*` and `?` are ordinary characters.
    """

    text: str
    exact: bool

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches a text."""
        return self.text == text if self.exact else glob_matches(self.text, text)

    def literal(self) -> str | None:
        """Return the text before a trailing `*`, or None if there are other wildcards."""
        if self.exact:
            return self.text
        bare: str = self.text.removesuffix("*")
        return None if "*" in bare or "?" in bare else bare


def _fresh(literals: frozenset[str], after: str) -> str:
    taken = {text[len(after)] for text in literals if text.startswith(after) and text != after}
    for char in _FRESH:
        if char not in taken:
            return char
    raise UnsupportedPolicy(after, "no unused character is left")


def _steps(pattern: Pattern, places: frozenset[int], char: str) -> frozenset[int]:
    text, found = pattern.text, set[int]()
    for place in places:
        if place == len(text):
            continue
        wild = "" if pattern.exact else text[place]
        if wild == "*":
            found.add(place)
        elif wild == "?" or text[place] == char:
            found.add(place + 1)
    return _past_stars(pattern, found)


def _past_stars(pattern: Pattern, places: set[int]) -> frozenset[int]:
    found = set(places)
    for place in places:
        at = place
        while not pattern.exact and at < len(pattern.text) and pattern.text[at] == "*":
            at += 1
            found.add(at)
    return frozenset(found)


def _representatives_by_automata(patterns: tuple[Pattern, ...]) -> tuple[str, ...]:
    chars = {c for pattern in patterns for c in pattern.text}
    alphabet = (*sorted(chars - {"*", "?"}), "*", "?", next(c for c in _FRESH if c not in chars))
    start = tuple(_past_stars(pattern, {0}) for pattern in patterns)
    seen, texts, queue = {start}, list[str](), deque([(start, "")])
    while queue:
        state, text = queue.popleft()
        texts.append(text)
        for char in alphabet:
            moved = tuple(_steps(p, at, char) for p, at in zip(patterns, state, strict=True))
            if moved not in seen:
                seen.add(moved)
                queue.append((moved, text + char))
        if len(seen) > STATES_MAX:
            raise UnsupportedPolicy("patterns", f"more than {STATES_MAX} states of wildcards")
    kinds = {tuple(p.matches(text) for p in patterns): text for text in reversed(texts)}
    return tuple(kinds.values())


@cache
def representatives_for(patterns: frozenset[Pattern]) -> tuple[str, ...]:
    """Return strings such that each string is matched by the same patterns as one of them.

    Raises:
        UnsupportedPolicy: The patterns have too many wildcards to decide.
    """
    ordered = tuple(sorted(patterns))
    literals = frozenset(text for text in (p.literal() for p in ordered) if text is not None)
    if any(pattern.literal() is None for pattern in ordered):
        return _representatives_by_automata(ordered)
    stems = sorted(literals | {""})
    return tuple(dict.fromkeys((*stems, *(stem + _fresh(literals, stem) for stem in stems))))
