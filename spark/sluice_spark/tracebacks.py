"""One line out of the long texts in which Spark wraps a Python error."""

import re
from typing import Final

_RAISED: Final = re.compile(r"^\s*(?:sluice_\w+|deltalake)\.[\w.]+: (?P<says>.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^\s*[\w.]*(?:Error|Exception): (?P<says>.+)$", re.MULTILINE)


def last_line(text: str) -> str:
    """Gives what an error of sluice said inside a wrapped text; else its last Python error."""
    for pattern in (_RAISED, _PYTHON):
        found = pattern.findall(text)
        if found:
            return str(found[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason was given"
