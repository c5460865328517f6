"""The rule that the URL of a store names an existing directory, and the default of `--store`."""

from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import BadUsage

STORE_DEFAULT: Final = "file://./.sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingDirectory:
    """A rule in the annotation of an option: a `file://` URL must name an existing directory.

    A typing error would otherwise create an empty store.

    Attributes:
        what: What the directory is.
        hint: What to do; `{url}` is replaced.
    """

    what: str
    hint: str

    def check(self, url: object) -> None:
        """Check the value of the option.

        Raises:
            BadUsage: There is no such directory.
        """
        if not isinstance(url, str) or not url.startswith("file://"):
            return
        from sluice_store.url import parse_local_path  # noqa: PLC0415 - imports the adapters

        path = parse_local_path(url)
        if path.is_file():
            raise BadUsage(f"a file is where a folder is required: correct the path, url=`{url}`")
        if not path.is_dir():
            raise BadUsage(f"no {self.what} at this path: {self.hint.format(url=url)}, url=`{url}`")


EXISTING_STORE: Final = ExistingDirectory(
    what="store",
    hint="change to its folder, pass `--store`, or create one with `sluice init --store {url}`",
)
