"""Who may send by Fluent's forward protocol: the shared keys of a file.

Each line is `NAME=KEY`; empty lines and lines that begin with `#` are left out. The handshake needs
the text of a key on both ends (ADR 21), so the file must be readable by the agent only.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from sluice_agent.doors.service import LOCAL_SENDER
from sluice_doors.forward.handshake import ForwardIdentity, SharedKey
from sluice_protocol.errors import BadUsage

KEY_CHARS_MIN: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


class KeySenders:
    """The senders of connections (`ForwardSenders`)."""

    def __init__(self, keys: Iterable[SharedKey]) -> None:
        """Without keys, every connection is accepted."""
        self._keys = tuple(keys)

    def of_connection(self, certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
        """Return the identity of every connection if no key is required, else None."""
        del certificate
        return None if self._keys else ForwardIdentity(name=LOCAL_SENDER)

    def shared_keys(self) -> Iterable[SharedKey]:
        """Return the keys."""
        return self._keys

    def of_identity(self, identity: ForwardIdentity) -> str:
        """Return the name of the sender."""
        return identity.key_id or identity.name


def read_forward_keys(path: Path) -> tuple[SharedKey, ...]:
    """Return the keys of a file; an error contains no key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"cannot read forward_keys: {error}, path=`{path}`") from error
    keys: dict[str, SharedKey] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, key = line.partition("=")
        if _NAME.fullmatch(name) is None or len(key) < KEY_CHARS_MIN:
            raise BadUsage(
                f"invalid line in forward_keys: use NAME=KEY with a key of at least"
                f" {KEY_CHARS_MIN} characters, path=`{path}` line=`{number}`"
            )
        if name in keys:
            raise BadUsage(
                f"a name occurs twice in forward_keys: use one line for each sender,"
                f" path=`{path}` name=`{name}`"
            )
        keys[name] = SharedKey(id=name, shared_key=key)
    if not keys:
        raise BadUsage(f"forward_keys contains no key: add a line NAME=KEY, path=`{path}`")
    return tuple(keys.values())
