"""Creates tokens for the clients of doors, and their entries in the principals file."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_doors.table import DoorName
from sluice_protocol.identity import check_door_principal
from sluice_web.tokens import token_sha256

TOKEN_BYTES: Final = 32
"""256 bits: a token cannot be guessed, so its plain sha256 may be stored."""
TOKEN_PREFIX: Final = "slt_"  # noqa: S105 - no secret
"""Lets scanners of source code find tokens that were committed."""
_ID_DIGITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorToken:
    """A new token, and a shared key where the door `forward` is among its doors.

    `token` is the secret, which is not stored anywhere. `id` is the first digits of its sha256.
    `principal` is TOML.
    """

    token: str
    id: str
    sha256: str
    principal: str


def create_token(principal: str, doors: Sequence[DoorName]) -> DoorToken:
    """Return a new random token and the principal entry that accepts it."""
    check_door_principal(principal)
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    sha256 = token_sha256(token)
    identifier = sha256[:_ID_DIGITS]
    entry = (
        f"[[principals]]\nname = {json.dumps(principal)}\ndoors = {json.dumps(list(doors))}\n"
        f'tokens = [{{ id = "{identifier}", sha256 = "{sha256}" }}]\n'
    )
    if "forward" in doors:
        # Fluent's handshake needs the text of the key on both ends (ADR 21).
        key = secrets.token_urlsafe(TOKEN_BYTES)
        entry += f'forward = [{{ id = "{identifier}", shared_key = "{key}" }}]\n'
    return DoorToken(token=token, id=identifier, sha256=sha256, principal=entry)
