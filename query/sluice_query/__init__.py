"""Time-bounded search over the lake and what is not in it yet, without a JVM."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice_query.tables import sql

__all__ = ["sql"]


def __getattr__(name: str) -> object:
    """Import the function of notebooks when it is used: its libraries take half a second."""
    if name == "sql":
        from sluice_query import tables  # noqa: PLC0415 - slow

        return tables.sql
    raise AttributeError(name)
