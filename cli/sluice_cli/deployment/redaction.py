"""Removes secrets from text before it leaves the machine."""

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[removed]"
_SECRET_OPTION: Final = re.compile(r"(token|secret|password|operators|viewers)", re.IGNORECASE)
_SECRET_TEXT: Final = (
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"slt_[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=bearer%20)\S+|(?<=basic )[A-Za-z0-9+/=]+"),
    re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"(?<=://)[^/\s@\"']+@"),
    re.compile(
        r"(?i)\b(?:aws_)?(?:secret_access_key|session_token|api_token|shared_key|password|secret)"
        r"[\"']?\s*[=:]\s*[\"'`]?[^\s\"'`,}]+"
    ),
    re.compile(r"(?i)(?<=x-amz-signature=)[0-9a-f]+|(?<=x-amz-security-token=)[^&\s]+"),
)
_LENGTH_MIN: Final = 6
"""Shorter values are words of ordinary text; removing them everywhere would destroy it."""


def is_secret_option(name: str) -> bool:
    """Return True if the value of this option must not be shown or leave the machine."""
    return _SECRET_OPTION.search(name) is not None


def remove_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without secrets: those of known forms, and each text of `known`."""
    for value in sorted(set(known), key=len, reverse=True):
        if len(value) >= _LENGTH_MIN:
            text = text.replace(value, HIDDEN)
    for pattern in _SECRET_TEXT:
        text = pattern.sub(HIDDEN, text)
    return text
