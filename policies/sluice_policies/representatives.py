"""Finitely many words that stand for all texts, exactly, as far as a set of patterns can tell.

Two texts are alike when the same patterns match both. `words_for` gives at least one word of each
kind of texts there is, so a question over every text is a question over these words. (z3's own
theory of strings proves the rendered documents as well, but times out on finding a text that
breaks a wrong one; `docs/adr/0072-words-for-all-texts.md`.)

For exact texts and prefixes the words are the literals themselves and each literal with one
character after it that leads into no other literal. Longest first: let `L` be the longest literal
that a text starts with; the text is `L`, or it goes on where no literal does, as `L` with that
character. Any other pattern is decided by running all patterns side by side as automata.
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
    """An exact text, or a pattern of IAM.

    Attributes:
        text: The text or pattern.
        exact: Whether `*` and `?` in it stand for themselves.
    """

    text: str
    exact: bool

    def matches(self, text: str) -> bool:
        """Tells whether a text is meant."""
        return self.text == text if self.exact else glob_matches(self.text, text)

    def literal(self) -> str | None:
        """Gives the text before a `*` at the very end, or None where wildcards stand elsewhere."""
        if self.exact:
            return self.text
        bare: str = self.text.removesuffix("*")
        return None if "*" in bare or "?" in bare else bare


def _fresh(literals: frozenset[str], after: str) -> str:
    taken = {text[len(after)] for text in literals if text.startswith(after) and text != after}
    for char in _FRESH:
        if char not in taken:
            return char
    raise UnsupportedPolicy(after, "no character is left")


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
    seen, words, queue = {start}, list[str](), deque([(start, "")])
    while queue:
        state, word = queue.popleft()
        words.append(word)
        for char in alphabet:
            moved = tuple(_steps(p, at, char) for p, at in zip(patterns, state, strict=True))
            if moved not in seen:
                seen.add(moved)
                queue.append((moved, word + char))
        if len(seen) > STATES_MAX:
            raise UnsupportedPolicy("patterns", f"more than {STATES_MAX} states of wildcards")
    kinds = {tuple(p.matches(word) for p in patterns): word for word in reversed(words)}
    return tuple(kinds.values())


@cache
def representatives_for(patterns: frozenset[Pattern]) -> tuple[str, ...]:
    """Gives words such that every text is matched by the same patterns as one of them.

    Raises:
        UnsupportedPolicy: The patterns have so many wildcards that there is no telling.
    """
    ordered = tuple(sorted(patterns))
    literals = frozenset(text for text in (p.literal() for p in ordered) if text is not None)
    if any(pattern.literal() is None for pattern in ordered):
        return _representatives_by_automata(ordered)
    stems = sorted(literals | {""})
    return tuple(dict.fromkeys((*stems, *(stem + _fresh(literals, stem) for stem in stems))))
