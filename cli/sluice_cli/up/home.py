"""The files of a deployment on one machine: settings, key, token, principals, lock and state.

`prepare_store` creates its store if there is none, and checks it.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from sluice_agent.sending.signing_key import make_key, principal_entry, read_key
from sluice_cli.up.services import DOOR_PRINCIPAL
from sluice_doors.table import DoorName
from sluice_gateway.door_tokens import create_token
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import AUTHORITY_SETTINGS
from sluice_protocol.outcomes import Found
from sluice_protocol.store_backends import is_local
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_store.authority import create_authority, read_authority
from sluice_store.doctor import examine, read_doctor, seal_result, write_result
from sluice_store.mode import StoreMode
from sluice_store.port import ObjectStore
from sluice_store.url import open_store

AGENT_ID: Final = "local-agent"


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The folder of one deployment."""

    folder: Path

    @property
    def principals(self) -> Path:
        """Who may send: the agent's key, and the token of the doors."""
        return self.folder / "principals.toml"

    @property
    def token(self) -> Path:
        """The token of the doors."""
        return self.folder / "token"

    @property
    def key(self) -> Path:
        """The key of an agent on this machine."""
        return self.folder / "agent.pem"

    @property
    def auditor_key(self) -> Path:
        """The key that signs audits; the first audit creates it."""
        return self.folder / "auditor.pem"

    @property
    def log(self) -> Path:
        """The common log."""
        return self.folder / "up.log"

    @property
    def state(self) -> Path:
        """The running deployment as JSON; it exists while the supervisor runs."""
        return self.folder / "up.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the folder until the block ends, or refuse; the lock ends with the process."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadUsage(
                    "sluice is already running here: stop it, or pass another `--home`,"
                    f" path=`{self.folder}`"
                ) from error
            yield

    def create_secrets(self) -> None:
        """Create the key, the token and the principals file, each readable by its owner only.

        Existing ones are kept. The principals file is written last: without it all are replaced.
        """
        if self.principals.exists():
            return
        made = create_token(DOOR_PRINCIPAL, get_args(DoorName))
        _write_private(self.token, made.token + "\n")
        key = read_key(self.key) if self.key.exists() else make_key(self.key)
        entries = f"{principal_entry(AGENT_ID, AGENT_ID, key)}\n{made.principal}"
        _write_private(self.principals, entries)

    def write_state(self, state: object) -> None:
        """Write the state of the running deployment."""
        _write_private(self.state, json.dumps(state, indent=1) + "\n")


def write_settings(path: Path, store_url: str, auditor_key: Path) -> bool:
    """Write a settings file with the store and the auditor's key; return False if one exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(
                "# Commands in this folder use this store and this key of audits.\n"
                f"store = {json.dumps(store_url)}\n"
                f"key_file = {json.dumps(str(auditor_key))}\n"
            )
    except FileExistsError:
        return False
    return True


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


async def prepare_store(url: str) -> Authority:
    """Create the settings of the authority unless the store has some, and examine a new bucket.

    Refuse an acceptance mode that needs a spool.
    """
    async with open_store(url, StoreMode.CREATE) as store:
        authority = await _read_or_create(store, url)
        if authority.acceptance != "s3_manifest":
            raise BadUsage(
                "cannot run on this store: it accepts in the spool of one gateway; start `sluice"
                f" gateway --spool` instead, acceptance=`{authority.acceptance}`, url=`{url}`"
            )
        # The gateway examines a directory, but leaves a bucket to an operator.
        if not is_local(url) and await read_doctor(store) is None:
            result = await examine([store], [url], SystemIds())
            await write_result(store, result, seal_result(result), SystemClock())
    return authority


async def _read_or_create(store: ObjectStore, url: str) -> Authority:
    if not isinstance(await store.get(AUTHORITY_SETTINGS), Found):
        return await create_authority(store)
    try:
        return await read_authority(store)
    except InvalidRecord as error:
        raise BadUsage(f"cannot read the settings of the store: {error}, url=`{url}`") from error
