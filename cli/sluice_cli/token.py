"""`sluice token`: tokens for clients that use the doors of a gateway."""

import sys
from typing import Annotated, get_args

from cyclopts import App, Parameter

from sluice_cli.shell.options import Json
from sluice_cli.shell.output import emit
from sluice_doors.table import DoorName

app = App(name="token", help="Create tokens for clients that use the doors of a gateway.")


@app.command
def create(
    *,
    principal: str,
    doors: Annotated[tuple[DoorName, ...], Parameter(consume_multiple=True)] = (),
    json: Json = False,
) -> None:
    """Create a token, print it once on standard error, and print its principal entry.

    Append the entry to the principals file of the gateways. For a principal that the file already
    contains, add only the part in braces to its `tokens`. Remove it there to revoke the token.
    For the door `forward` the entry also contains the shared key that the client needs.

    Args:
        principal: The name of the sender; the lake shows its records under `door:<name>:…`.
        doors: The protocols that it may use; all where none is named.
        json: Print JSON for programs, the token included.
    """
    from sluice_gateway.door_tokens import create_token  # noqa: PLC0415 - quick help

    made = create_token(principal, doors or get_args(DoorName))
    if not json:
        sys.stderr.write(f"token, shown only now: {made.token}\n")
    emit(
        made,
        as_json=json,
        human=lambda console: console.print(f"\n{made.principal}", end="", markup=False),
    )
