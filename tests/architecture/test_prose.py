"""Everything that a person reads is plain English; the checker itself is tested on planted text.

Rules of plain English, and the text of the checkout that they apply to.

The rules are data: a pattern and what to write instead. The extraction covers Markdown pages and,
in Python files, docstrings, comments and string literals that read as prose (messages and help
texts). Code in Markdown (fences and inline) and format fields of messages are not prose.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

MESSAGE_WORDS_MIN: Final = 3

SUBSTITUTIONS: Final = (
    (r"^Gives\b", "Return …"),
    (r"^Tells\b", "Return True if …"),
    (r"\bstands?\b(?!-in| for\b)|\bstood\b", "exists, is current, is halted"),
    (r"\b(?:for ever|for good)\b", "permanently"),
    (r"\b(?:anew|once more|made again)\b", "again, rebuilt, retried"),
    (
        r"\b(?:nobody|somebody|whoever|a person)\b",
        "no client, another writer, the caller, an operator",
    ),
    (r"\b(?:tells|told)\b", "reports, logs, is set to"),
    (r"\bsays\b", "reports, contains, states"),
    (r"\b(?:is|are|was|were|be|been) asked\b|\basks\b", "queries, requests, checks"),
    (r"\banswers (?:with|the|a|an|to|only|every|all|each|\d)\b", "responds, returns"),
    (r"\bbeside\b", "next to, in addition to, alongside"),
    (r"\b(?:held|hold|holds|holding) against\b", "compared with"),
    (
        r"\bbatch(?:es)? (?:goes|go|comes|come|lies|lie|waits|wait)\b",
        "is sent, is stored, is queued",
    ),
    (r"\bcarr(?:y|ies|ied|ying)\b", "move, upload, contain"),
    (r"\b(?:what lacks|what is missing)\b|\black(?:s|ed)?\b", "missing X"),
    (r"\bso for that\b", "write the sentence out"),
    (
        r"\btakes? (?:a|the|an|no|any|one) (?:new )?(?:request|lease|upload|connection)\b",
        "accept, acquire",
    ),
    (r"\b(?:of its own|by itself)\b", "separate, automatically"),
    (r"\bat once\b", "immediately, concurrently"),
    (r"\b(?:is|are|was|were) away\b|\b(?:does|do|did) not answer\b", "is unreachable"),
    (r"\blook(?:s|ed|ing)? (?:at|after)\b", "inspect, read, manage"),
    (r"\bmend(?:s|ed|ing)?\b", "fix, repair"),
    (r"\bgo(?:es)? on\b|\bwent on\b|\bgoing on\b", "continue"),
)
"""Patterns (case-sensitive, `^` is the start of a text) and what to write instead."""

_COMPILED: Final = tuple((re.compile(pattern), advice) for pattern, advice in SUBSTITUTIONS)
_FENCE: Final = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_DIAGRAM: Final = re.compile(r"^.*(?:→|-->|──|  +\S+  +\S).*$", re.MULTILINE)
"""Lines of state diagrams and aligned tables."""
_INLINE_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_WORD: Final = re.compile(r"[A-Za-z][\w'-]*")
_DIRECTIVE: Final = re.compile(r"!|noqa\b|type:|fmt:|ruff:|pragma")
_NOQA_REASON: Final = re.compile(r"noqa: ?[A-Z0-9, ]+? - (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One piece of prose: where it starts, and its words without code."""

    path: Path
    line: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One rule that a text breaks."""

    path: Path
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def find_breaches(text: Text) -> Iterator[Breach]:
    """Yield every rule that a text breaks."""
    for pattern, advice in _COMPILED:
        for found in pattern.finditer(text.words):
            line = text.line + text.words.count("\n", 0, found.start())
            yield Breach(path=text.path, line=line, rule=f'"{found[0]}": write {advice}')


def _blank(found: re.Match[str]) -> str:
    """Replace code by nothing but its line breaks, so that line numbers stay."""
    return "\n" * found[0].count("\n") if "\n" in found[0] else "x"


def read_markdown(path: Path) -> Iterator[Text]:
    """Yield the prose of a page; one text, without code."""
    words = _FENCE.sub(_blank, path.read_text())
    words = re.sub(r"^(?: {4}|\t).*$", "", words, flags=re.MULTILINE)
    words = _LINK.sub(r"\1", _INLINE_CODE.sub(_blank, words))
    yield Text(path=path, line=1, words=words)


def read_python(path: Path) -> Iterator[Text]:
    """Yield docstrings, comments and messages of a module."""
    source = path.read_text()
    docstrings = list(_docstrings(ast.parse(source)))
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    found = [(node.lineno, str(node.value)) for node in docstrings]
    found.extend(_comments(tokens))
    found.extend(_messages(tokens, {node.lineno for node in docstrings}))
    for line, words in found:
        without_diagrams = _DIAGRAM.sub("", words)
        yield Text(path=path, line=line, words=_INLINE_CODE.sub(_blank, without_diagrams))


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as constant):
                yield constant
            case _:
                pass


def _comments(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[int, str]]:
    """Yield comments; adjacent comment lines are one text."""
    first, lines, previous = 0, [""], -1
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("#").strip()
        if _DIRECTIVE.match(words):
            reason = _NOQA_REASON.match(words)
            if reason is not None:
                yield token.start[0], reason[1]
            continue
        if token.start[0] != previous + 1:
            yield first, "\n".join(lines)
            first, lines = token.start[0], []
        lines.append(words)
        previous = token.start[0]
    yield first, "\n".join(lines)


def _messages(
    tokens: list[tokenize.TokenInfo], docstring_lines: set[int]
) -> Iterator[tuple[int, str]]:
    """Yield string literals that read as prose; adjacent literals are one text."""
    first = 0
    parts: list[str] = []
    for token in tokens:
        if token.type == tokenize.STRING and token.start[0] not in docstring_lines:
            if not parts:
                first = token.start[0]
            parts.append(_literal(token.string))
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            words = "" if _is_code("".join(parts)) else "".join(parts)
            if len(_WORD.findall(words)) >= MESSAGE_WORDS_MIN and " " in words.strip():
                yield first, words
            parts = []


def _literal(string: str) -> str:
    """Return the text of a string token, with `x` for each format field."""
    body = re.sub(r"^[A-Za-z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", string)
    return re.sub(r"\{[^{}]*\}", "x", body).replace("\\n", "\n")


def _is_code(literal: str) -> bool:
    """Return True if a literal of several lines is Python or TOML."""
    if "\n" not in literal:
        return False
    if re.search(r"^\[+\w|^\w+ = ", literal, re.MULTILINE):
        return True
    try:
        ast.parse(literal)
    except SyntaxError:
        return False
    return True


ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks, or would track, and that match a pattern."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns)
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in listed.stdout.splitlines())
    return [path for path in paths if path.exists() and path != Path(__file__)]


def breaches_of(path: Path) -> list[str]:
    read = read_markdown if path.suffix == ".md" else read_python
    return [str(breach) for text in read(path) for breach in find_breaches(text)]


@pytest.mark.parametrize("kind", ["*.md", "*.py"])
def test_pages_docstrings_comments_and_messages_are_plain_english(kind: str) -> None:
    found = [breach for path in tracked(kind) for breach in breaches_of(path)]
    assert found == [], f"{len(found)} passages to rewrite:\n" + "\n".join(found[:50])


def rules_broken(words: str) -> int:
    return len(list(find_breaches(Text(path=Path("page.md"), line=1, words=words))))


@pytest.mark.parametrize(
    "words",
    [
        "Gives the number of lanes.",
        "The register stands until it is rebuilt.",
        "Nobody waits for a batch once more.",
        "The blob is kept for ever.",
    ],
)
def test_a_planted_phrase_is_found(words: str) -> None:
    assert rules_broken(words) > 0


def test_plain_sentences_pass() -> None:
    assert rules_broken("Return the number of lanes. The store decides which bytes own a key.") == 0


def test_code_in_a_page_is_not_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `sluice tells`:\n\n```\nit stands for ever\n```\n\n    nobody\n")
    assert breaches_of(page) == []


def test_a_breach_in_a_page_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```\ncode\n```\n\nThe lane stands.\n")
    assert breaches_of(page)[0].startswith(f"{page}:7: ")


def test_docstrings_comments_and_messages_of_a_module_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Gives a module."""\n'
        "# nobody reads this\n"
        "x = 1  # noqa: E501 - it stands there\n"
        "raise ValueError(\n"
        '    f"the store {x} is told"\n'
        '    " once more"\n'
        ")\n"
    )
    lines = sorted(int(breach.split(":")[1]) for breach in breaches_of(module))
    assert lines == [1, 2, 3, 5, 5]
