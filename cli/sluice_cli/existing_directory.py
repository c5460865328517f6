"""The rule that the URL of a store names an existing store, and the default of `--store`."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import NoStore

STORE_DEFAULT: Final = "file://./.sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingDirectory:
    """A rule in the annotation of an option: a `file://` URL must name the folder of a store.

    The open of the store checks the same; this check is made before a command imports or starts
    anything.

    Attributes:
        remedy: What to do if there is none; empty for the remedy of a missing store.
    """

    remedy: str = ""

    def check(self, url: object) -> None:
        """Check the value of the option.

        Raises:
            NoStore: There is no store; the error names a store in this folder or above it.
        """
        if not isinstance(url, str) or not url.startswith("file://"):
            return
        from sluice_store.mode import require_store  # noqa: PLC0415 - quick help
        from sluice_store.url import parse_local_path  # noqa: PLC0415 - imports the adapters

        try:
            require_store(parse_local_path(url))
        except NoStore as error:
            if self.remedy:
                raise NoStore(error.place, self.remedy) from error
            raise


EXISTING_STORE: Final = ExistingDirectory()
