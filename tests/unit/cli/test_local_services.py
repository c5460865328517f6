"""The command lines of `sluice up`."""

from sluice_cli.up.services import DOOR_PRINCIPAL, HOST, SERVICES


def test_a_client_of_fluents_protocol_needs_no_key_on_loopback() -> None:
    """It reports success before any handshake, so its records would be lost silently."""
    words = next(one for one in SERVICES if one.name == "gateway").words
    assert words[words.index("--forward-principal") + 1] == DOOR_PRINCIPAL
    assert HOST == "127.0.0.1"
