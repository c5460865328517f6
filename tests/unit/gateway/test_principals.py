"""The principals file: its rules, and that an invalid one changes nothing."""

import base64
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice_doors.requests import sent_token
from sluice_gateway.door_tokens import create_token
from sluice_gateway.uploads.principals import PrincipalsFile, parse_principals, spiffe_id
from sluice_protocol.errors import BadUsage, Unauthenticated

RAW = base64.b64encode(
    Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
).decode()
GOOD = f"""
[[principals]]
name = "host-1"
agents = ["host-1", "host-1b"]
keys = [
  {{ id = "old", ed25519 = "{RAW}", not_after = 2027-01-01T00:00:00Z }},
  {{ id = "new", ed25519 = "{RAW}" }},
]
[[principals]]
name = "ops"
roles = ["operator"]
agents = ["ignored"]
spiffe = "spiffe://td/ops"
[[principals]]
name = "fleet"
agent_template = "spiffe://td/agent/{{agent}}"
"""
NEW_YEAR_S = 1_798_761_600


def test_principals_of_keys() -> None:
    """Two keys of one principal are the same sender, so a key can be replaced without a gap."""
    principals = parse_principals(GOOD)
    old, new = principals.key_of("old", NEW_YEAR_S), principals.key_of("new", NEW_YEAR_S)
    assert old.sender == new.sender
    assert old.sender.agents == {"host-1", "host-1b"}
    assert not old.sender.operator


def test_principals_old_key_expires() -> None:
    """A key after its not_after is unknown; the new key is valid."""
    principals = parse_principals(GOOD)
    with pytest.raises(Unauthenticated, match="not_after"):
        principals.key_of("old", NEW_YEAR_S + 1)
    assert principals.key_of("new", NEW_YEAR_S + 1)
    with pytest.raises(Unauthenticated):
        principals.key_of("other", 0)


def test_principals_operator_is_no_agent() -> None:
    """Without the role `agent` a principal sends for no agent."""
    sender = parse_principals(GOOD).spiffe_sender("spiffe://td/ops")
    assert (sender.operator, sender.agents) == (True, frozenset())


def test_principals_template_matches_one_whole_segment() -> None:
    """`{agent}` is the lower-case hex of the id, one whole segment."""
    principals = parse_principals(GOOD)
    sender = principals.spiffe_sender(f"spiffe://td/agent/{'hóst'.encode().hex()}")
    assert sender.agents == {"hóst"}
    for uri in (
        "spiffe://td/agent/",
        "spiffe://td/agent/6",
        "spiffe://td/agent/6A",
        "spiffe://td/agent/61/",
        "spiffe://td/agent/61%2f62",
        "spiffe://td/agent/../agent/61",
        "spiffe://td/agent/ff",
        "spiffe://td/agent/61\n",
        "spiffe://other/agent/61",
        "xspiffe://td/agent/61",
    ):
        with pytest.raises(Unauthenticated):
            principals.spiffe_sender(uri)


@pytest.mark.parametrize(
    "text",
    [
        "principals",
        pytest.param("x = " + "[" * 5_000, id="nested too deeply"),
        pytest.param("x = " + "1" * 5_000, id="number too long"),
        "[[principals]]\n",
        '[[principals]]\nname = "a"\nrole = "agent"\n',
        '[[principals]]\nname = "a"\nroles = ["root"]\n',
        '[[principals]]\nname = "a"\n[[principals]]\nname = "a"\n',
        '[[principals]]\nname = "a"\nkeys = [{ id = "k", ed25519 = "AAAA" }]\n',
        f'[[principals]]\nname = "a"\nkeys = [{{ id = "", ed25519 = "{RAW}" }}]\n',
        (
            f'[[principals]]\nname = "a"\nkeys = [{{ id = "k", ed25519 = "{RAW}" }}, '
            f'{{ id = "k", ed25519 = "{RAW}" }}]\n'
        ),
        '[[principals]]\nname = "a"\nagent_template = "spiffe://td/x{agent}"\n',
        '[[principals]]\nname = "a"\nagent_template = "spiffe://td/{agent}/{agent}"\n',
        '[[principals]]\nname = "a"\nagent_template = "https://td/{agent}"\n',
    ],
)
def test_principals_of_another_form_are_refused(text: str) -> None:
    """A typo must neither grant nor deny access: unknown fields, duplicates and bad keys are
    errors.
    """
    with pytest.raises(BadUsage):
        parse_principals(text)


def test_principals_file_keeps_the_last_good_content(tmp_path: Path) -> None:
    """A valid change is applied as a whole; an invalid, empty or missing file changes nothing."""
    path = tmp_path / "principals.toml"
    path.write_text(GOOD, encoding="utf-8")
    held = PrincipalsFile(path)
    assert not held.reload()
    for broken in ("[[principals]]\nname = 1\n", "", "# nobody\n", None):
        path.unlink() if broken is None else path.write_text(broken, encoding="utf-8")
        assert [held.reload() for _ in range(3)] == [False, False, False]
        assert held.failed
        assert held.current.keys
    path.write_text('[[principals]]\nname = "none"\n', encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert [held.reload() for _ in range(3)] == [False, True, False]
    assert not held.failed
    assert not held.current.keys


def test_a_principals_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """An editor truncates the file, and writes it in pieces that are valid without the rest."""
    path = tmp_path / "principals.toml"
    path.write_text(GOOD, encoding="utf-8")
    held = PrincipalsFile(path)
    with path.open("w", encoding="utf-8") as out:
        for piece in ("", '[[principals]]\nname = "first"\n', '[[principals]]\nname = "last"\n'):
            out.write(piece)
            out.flush()
            assert not held.reload()
            assert not held.failed
            assert held.current.keys
    assert held.reload()
    assert set(held.current.names) == {"first", "last"}


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "spiffe://td/a"),),
        (("URI", "spiffe://td/a"), ("URI", "spiffe://td/b")),
        (("URI", "https://td/a"),),
    ],
)
def test_spiffe_id_is_the_only_uri(names: tuple[tuple[str, str], ...]) -> None:
    """No URI, two URIs, or one of another scheme identify no sender."""
    with pytest.raises(Unauthenticated):
        spiffe_id({"subjectAltName": names})
    assert spiffe_id({"subjectAltName": (("DNS", "x"), ("URI", "spiffe://td/a"))})


TOKEN = create_token("shop", ["otlp", "json"])


def test_token_is_known_by_its_digest_only() -> None:
    """The file contains no secret, and only the token itself is accepted."""
    assert TOKEN.token not in TOKEN.principal
    principals = parse_principals(TOKEN.principal)
    sender = principals.token_sender(TOKEN.token, 0)
    assert (sender.principal, sender.doors) == ("shop", {"otlp", "json"})
    assert (sender.agents, sender.operator) == (frozenset(), False)
    for other in (TOKEN.token + "x", TOKEN.sha256, "", "\udcff"):
        with pytest.raises(Unauthenticated, match="no principal has this token"):
            principals.token_sender(other, 0)


def test_token_expires() -> None:
    text = TOKEN.principal.replace(" }]", ", not_after = 2027-01-01T00:00:00Z }]")
    principals = parse_principals(text)
    assert principals.token_sender(TOKEN.token, NEW_YEAR_S)
    with pytest.raises(Unauthenticated, match="not_after"):
        principals.token_sender(TOKEN.token, NEW_YEAR_S + 1)


@pytest.mark.parametrize(
    ("found", "replaced", "reason"),
    [
        (TOKEN.sha256, TOKEN.token, "64 hex digits"),
        ('"shop"', f'"{"s" * 113}"', "at most 112 bytes"),
        ('"json"', '"smtp"', "Invalid enum value"),
        ('"shop"\n', '"shop"\nagents = ["door:a:00"]\n', "reserved"),
    ],
    ids=["digest", "principal", "door", "agent"],
)
def test_wrong_entries_of_doors_are_refused(found: str, replaced: str, reason: str) -> None:
    with pytest.raises(BadUsage, match=reason):
        parse_principals(TOKEN.principal.replace(found, replaced))
    with pytest.raises(BadUsage, match="duplicate token"):
        parse_principals(TOKEN.principal + TOKEN.principal.replace('"shop"', '"other"'))


def test_a_token_for_the_door_of_fluent_has_a_shared_key() -> None:
    """The key is readable in the file: its handshake needs the text on both ends."""
    made = create_token("shop", ["forward"])
    [known] = parse_principals(made.principal).forward.values()
    assert known.shared_key in made.principal
    assert known.shared_key != made.token
    assert (known.sender.principal, known.username) == ("shop", None)
    short = made.principal.replace(known.shared_key, "short")
    with pytest.raises(BadUsage, match="at least 16"):
        parse_principals(short)
    again = create_token("other", ["forward"]).principal
    twice = again.replace(forward_id(again), forward_id(made.principal))
    with pytest.raises(BadUsage, match="duplicate forward id"):
        parse_principals(made.principal + twice)


def forward_id(entry: str) -> str:
    return entry.partition('forward = [{ id = "')[2].partition('"')[0]


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, None),
        ({"Authorization": "Bearer t"}, "t"),
        ({"Authorization": "bearer  t "}, "t"),
        ({"Authorization": "Splunk t"}, "t"),
        ({"Authorization": "ApiKey t"}, "t"),
        ({"Authorization": f"ApiKey {base64_of('id:t')}"}, "t"),
        ({"Authorization": f"Basic {base64_of('any:t:t')}"}, "t:t"),
        ({"X-Amz-Firehose-Access-Key": "t"}, "t"),
    ],
)
def test_tokens_in_the_fields_that_clients_send(headers: dict[str, str], token: str) -> None:
    assert sent_token(headers) == token


@pytest.mark.parametrize("authorization", ["Digest x", "Basic t", f"Basic {base64_of('t')}", ""])
def test_other_authorizations_are_refused(authorization: str) -> None:
    with pytest.raises(Unauthenticated):
        sent_token({"Authorization": authorization})
