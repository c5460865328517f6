"""Options that several commands share, and the rule that a store's URL names an existing store."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from sluice_protocol.errors import BadUsage, NoStore
from sluice_store.url import URL_FORMS, find_backend, is_local, local_folder

STORE_DEFAULT: Final = "file://./.sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingDirectory:
    """A rule in the annotation of an option: its URL must name a store, a folder an existing one.

    The open of the store checks the same; this check is made before a command imports or starts
    anything.

    Attributes:
        absence: The error if there is none; empty for that of a missing store.
        is_read: Whether the command only reads, so that without a value and without a store in this
            folder it uses that of a deployment that runs on this machine.
    """

    absence: str = ""
    is_read: bool = False

    def find(self) -> str | None:
        """Return the store of the running deployment, and print which it is; None for none."""
        if not self.is_read or Path(".sluice").exists():
            return None
        from sluice_cli.shell.running import find_running  # noqa: PLC0415 - without a store here

        # The query service of a deployment has a file too; the deployment's is the later one.
        stores = {one.store: one.pid for one in reversed(find_running())}
        if len(stores) > 1:
            raise BadUsage(
                "several deployments run on this machine: choose one with `--store`,"
                f" stores=`{' '.join(stores)}`"
            )
        for store, pid in stores.items():
            sys.stderr.write(f"store of the running deployment: {store}, pid={pid}\n")
            return store
        return None

    def show(self, url: object) -> None:
        """Print on a terminal which store the command uses; programs that read stderr get none."""
        if self.absence or not isinstance(url, str) or not sys.stderr.isatty():
            return
        folder = local_folder(url)
        sys.stderr.write(f"store: {url if folder is None else folder.absolute().as_uri()}\n")

    def check(self, url: object) -> None:
        """Check the value of the option; the error names a store in this folder or above it."""
        if not isinstance(url, str) or (find_backend(url) is not None and not is_local(url)):
            return  # a bucket is opened by the command, which imports its adapter
        from sluice_store.url import require_store  # noqa: PLC0415 - quick help

        folder = local_folder(url)
        if folder is None:
            from sluice_store.url import check_store_url  # noqa: PLC0415 - the adapters

            check_store_url(url)
            return
        try:
            require_store(folder)
        except NoStore as error:
            if self.absence:
                raise BadUsage(f"{self.absence}, path=`{error.place}`") from error
            raise


EXISTING_STORE: Final = ExistingDirectory()
EXISTING_SPOOL: Final = ExistingDirectory(
    absence="no spool of a gateway here; pass the value of the gateway's `--spool`, as a URL"
)


_NAMED: Final = Parameter(
    name="--store",
    env_var="SLUICE_STORE",
    help=f"{URL_FORMS}.",
)

FoundStoreUrl = Annotated[str, _NAMED, ExistingDirectory(is_read=True)]
"""The authority of a command that only reads: without the option, one is found."""

NewStoreUrl = Annotated[str, _NAMED]
"""The acceptance authority: a bucket, or a directory, which is created if it does not exist."""

StoreUrl = Annotated[str, _NAMED, EXISTING_STORE]
"""The acceptance authority: a bucket and prefix, or an existing directory."""

ENGINE: Final = Parameter(help="`local` in this process, or `spark` on Spark's executors.")

VerificationKeys = Annotated[
    Path,
    Parameter(
        name="--key-file",
        help="The auditor's key. A command that signs nothing also accepts a file of public keys"
        " to trust, base64, one a line.",
    ),
]
"""The keys of a command that verifies signatures and makes none."""

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs.")]
