"""The default store: a directory as an object store, safe between the processes of one machine."""

from sluice_store.local.store import LocalStore, open_local_store

__all__ = ["LocalStore", "open_local_store"]
