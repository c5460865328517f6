"""Parts of a page of the documentation: tables, and sections that a program writes."""

from collections.abc import Iterator

from sluice_protocol.errors import BadUsage


def split_section(page: str, begin: str, end: str) -> tuple[str, str, str]:
    """Return the text through the first mark, the section, and the text from the second mark on."""
    before, found_begin, rest = page.partition(begin)
    section, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise BadUsage(f"cannot write a section of the page: it has no marks, mark=`{begin}`")
    return before + begin, section, end + after


def _cell(text: object) -> str:
    """Return a text as the content of a cell: on one line, with the bars and tags escaped."""
    joined = " ".join(str(text).split())
    return joined.replace("|", "\\|").replace("<", "&lt;")


def markdown_table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(map(_cell, row)) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)
