"""The decoders through Arrow, for large bodies where the extra `doors` is installed."""

import importlib
from functools import cache
from types import ModuleType
from typing import Final

ARROW_BYTES_MIN: Final = 12 * 1024
"""Smaller bodies are decoded record by record: Arrow takes 1.2 ms of CPU time whatever the size."""


def arrow_road(name: str, body: bytes) -> ModuleType | None:
    """Return the module that decodes a body through Arrow; None if it is small or not installed.

    Args:
        name: The module, in this package. It raises its `NotPlain` for what it leaves to the
            mapping record by record.
        body: The body after decompression.
    """
    return _module(name) if len(body) >= ARROW_BYTES_MIN else None


@cache
def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"sluice_doors.{name}")
    except ImportError:
        return None
