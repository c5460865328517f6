"""The object-store port and its adapters.

A name is imported from its module when it is first used: a command that lets a service compute its
answer opens no store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluice_store.authority import create_authority, open_deployment, read_authority
    from sluice_store.local import LocalStore, open_local_store
    from sluice_store.port import (
        IncarnationPage,
        ListedIncarnation,
        ListedObject,
        ListPage,
        ObjectStore,
        Versioning,
    )
    from sluice_store.url import StoreMode, open_store

_MODULES: Final = {
    **dict.fromkeys(("create_authority", "open_deployment", "read_authority"), "authority"),
    **dict.fromkeys(("LocalStore", "open_local_store"), "local"),
    **dict.fromkeys(("StoreMode", "open_store"), "url"),
}
_PORT: Final = "port"

__all__ = [
    "IncarnationPage",
    "ListPage",
    "ListedIncarnation",
    "ListedObject",
    "LocalStore",
    "ObjectStore",
    "StoreMode",
    "Versioning",
    "create_authority",
    "open_deployment",
    "open_local_store",
    "open_store",
    "read_authority",
]


def __getattr__(name: str) -> object:
    """Return a name of `__all__` from its module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, _PORT)}"), name)
    globals()[name] = found
    return found
