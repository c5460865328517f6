"""The object-store port and its adapters."""

from sluice_store.authority import create_authority, open_deployment, read_authority
from sluice_store.local import LocalStore, open_local_store
from sluice_store.mode import StoreMode
from sluice_store.port import (
    IncarnationPage,
    ListedIncarnation,
    ListedObject,
    ListPage,
    ObjectStore,
    Versioning,
)
from sluice_store.url import open_store

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
