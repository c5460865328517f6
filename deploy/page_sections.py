"""Sections of a page of the documentation that a program writes, between two marks."""

from sluice_protocol.errors import BadUsage


def split_section(page: str, begin: str, end: str) -> tuple[str, str, str]:
    """Return the text through the first mark, the section, and the text from the second mark on."""
    before, found_begin, rest = page.partition(begin)
    section, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise BadUsage(f"cannot write a section of the page: it has no marks, mark=`{begin}`")
    return before + begin, section, end + after
