"""Keys and identities are built, parsed back, and rejected if foreign."""

import pytest

from sluice_protocol.errors import InvalidFrame, InvalidRecord, SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import journal_key, process_name, registration_key
from sluice_protocol.keys import (
    ALL_PREFIXES,
    PackSpan,
    accepted_by_blob_key,
    accepted_by_time_key,
    accepted_key,
    agent_prefix,
    blob_key,
    digest_of,
    hour_path,
    index_key,
    lane_of,
    metric_segment,
    pack_key,
    parse_accepted_key,
    parse_blob_key,
    parse_by_blob_key,
    parse_digest,
    parse_pack_key,
    parse_quarantine_key,
    quarantine_by_blob_key,
    quarantine_key,
    raw_blob_by_time_key,
    register_key,
    rollup_key,
    segment_key,
    work_list_key,
)
from sluice_protocol.units import UnixNs

WHO = Identity(agent_id="é/..", boot_id="b", seq_start=0, seq_end=2**63 - 1)
DIGEST = digest_of(b"")
HEX = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
AT_NS = UnixNs(1_767_225_599_999_999_999)
TAIL = "agent=c3a92f2e2e/boot=62/00000000000000000000-09223372036854775807"


def test_keys_are_those_of_the_protocol() -> None:
    fan = f"sha256/e3/b0/{HEX}"
    hour = "date=2025-12-31/hour=23"
    stamp = "01767225599999999999"
    assert blob_key(DIGEST) == f"raw-blobs/v1/{fan}.lmbatch"
    assert raw_blob_by_time_key(DIGEST, AT_NS) == f"raw-blobs-by-time/v1/{hour}/sha256={HEX}.json"
    assert accepted_key(WHO) == f"accepted/v1/{TAIL}.json"
    by_time = accepted_by_time_key(accepted_key(WHO), AT_NS)
    assert (
        by_time
        == f"accepted-by-time/v1/{hour}/{stamp}-{digest_of(accepted_key(WHO).encode())[:32]}.json"
    )
    assert accepted_by_blob_key(DIGEST, WHO) == f"accepted-by-blob/v1/{fan}/{TAIL}.json"
    assert quarantine_key(WHO, DIGEST) == f"quarantine/v1/identity-conflict/{TAIL}/{HEX}.json"
    assert quarantine_by_blob_key(DIGEST, WHO) == f"quarantine-by-blob/v1/{fan}/{TAIL}.json"
    assert (
        work_list_key("spark", 7, "ULID", AT_NS)
        == f"manifests/v1/{hour}/{stamp}-spark.007-ULID.json"
    )
    assert register_key("spark", 7) == "queue/v1/spark.007/manifest"
    assert segment_key("spark", 7, 1, 2) == f"queue/v1/spark.007/segments/{1:020d}-{2:020d}"
    assert index_key("logs", AT_NS, "c") == f"index/v1/logs/{hour}/c.lmindex"
    assert (
        rollup_key("1m", "m", AT_NS, "c") == f"rollup/v1/window=1m/{hour}/metric=6d/c.lmrollup.zst"
    )
    assert accepted_key(WHO).startswith(agent_prefix(WHO.agent_id))


def test_every_key_is_under_a_known_prefix() -> None:
    """Policies are rendered from the prefixes, so no key may be outside them."""
    for key in (
        blob_key(DIGEST),
        raw_blob_by_time_key(DIGEST, AT_NS),
        accepted_key(WHO),
        accepted_by_time_key(accepted_key(WHO), AT_NS),
        accepted_by_blob_key(DIGEST, WHO),
        quarantine_key(WHO, DIGEST),
        quarantine_by_blob_key(DIGEST, WHO),
        work_list_key("q", 0, "u", AT_NS),
        register_key("q", 0),
        index_key("logs", AT_NS, "c"),
        rollup_key("1m", "m", AT_NS, "c"),
        registration_key(process_name(AT_NS, "0" * 26)),
        journal_key(process_name(AT_NS, "0" * 26), 1),
    ):
        assert sum(key.startswith(prefix) for prefix in ALL_PREFIXES) == 1


def test_longest_keys_fit_into_s3() -> None:
    """The longest ids result in keys of at most 1024 bytes, with no segment over 255."""
    longest = Identity(agent_id="x" * 120, boot_id="y" * 64, seq_start=0, seq_end=2**63 - 1)
    for key in (
        accepted_by_blob_key(DIGEST, longest),
        quarantine_key(longest, DIGEST),
        quarantine_by_blob_key(DIGEST, longest),
        rollup_key("1m", "m" * 120, AT_NS, "c" * 64),
        rollup_key("1m", "m" * 121, AT_NS, "c" * 64),
    ):
        assert len(key) <= 800
        assert max(map(len, key.split("/"))) <= 255


def test_parsers_invert_key_builders() -> None:
    assert parse_accepted_key(accepted_key(WHO)) == WHO
    assert parse_blob_key(blob_key(DIGEST)) == DIGEST
    assert parse_quarantine_key(quarantine_key(WHO, DIGEST)) == (WHO, DIGEST)
    for key in (accepted_by_blob_key(DIGEST, WHO), quarantine_by_blob_key(DIGEST, WHO)):
        found = parse_by_blob_key(key)
        assert (found.digest, found.identity) == (DIGEST, WHO)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "accepted/v1/",
        accepted_key(WHO).upper(),
        accepted_key(WHO) + "x",
        "/" + accepted_key(WHO),
        accepted_key(WHO).replace("v1", "v2"),
        accepted_key(WHO).replace("c3a9", "C3A9"),
        accepted_key(WHO).replace("c3a9", "c3"),
        accepted_key(WHO).replace("c3a9", "c3a"),
        accepted_key(WHO).replace("c3a9", "00"),
        accepted_key(WHO).replace("boot=62", "boot="),
        accepted_key(WHO).replace("boot=62", "boot=" + "62" * 65),
        accepted_key(WHO).replace("-0922", "-0923"),
        accepted_key(WHO).replace("/0000", "/000"),
        f"accepted/v1/agent=61/boot=62/{5:020d}-{4:020d}.json",
        accepted_key(WHO).replace("/0000", "/\u0660000"),
        accepted_key(WHO) + "\n",
    ],
)
def test_foreign_accepted_keys_are_rejected(key: str) -> None:
    """A key that sluice never writes is rejected by name and never read as an identity."""
    with pytest.raises(InvalidRecord) as caught:
        parse_accepted_key(key)
    assert caught.value.key == key or "/0" in key


@pytest.mark.parametrize(
    "key",
    [
        blob_key(DIGEST).replace("e3/b0", "b0/e3"),
        blob_key(DIGEST).replace("sha256", "sha512"),
        blob_key(DIGEST).upper(),
        blob_key(DIGEST)[:-1],
        blob_key(DIGEST) + "\n",
        "raw-blobs/v1/x",
    ],
)
def test_foreign_blob_keys_are_rejected(key: str) -> None:
    with pytest.raises(InvalidRecord):
        parse_blob_key(key)


def test_foreign_reference_and_quarantine_keys_are_rejected() -> None:
    for key in (
        accepted_key(WHO),
        accepted_by_blob_key(DIGEST, WHO).replace("e3/b0", "e3/b1"),
        accepted_by_blob_key(DIGEST, WHO) + "/x",
        blob_key(DIGEST),
    ):
        with pytest.raises(InvalidRecord):
            parse_by_blob_key(key)
    for key in (
        quarantine_key(WHO, DIGEST)[:-5],
        quarantine_key(WHO, DIGEST).replace(HEX, HEX[:-1]),
        accepted_key(WHO),
        f"quarantine/v1/identity-conflict/{HEX}.json",
    ):
        with pytest.raises(InvalidRecord):
            parse_quarantine_key(key)


@pytest.mark.parametrize(
    ("agent", "boot", "start", "end"),
    [
        ("", "b", 0, 0),
        ("a", "", 0, 0),
        ("x" * 121, "b", 0, 0),
        ("ä" * 61, "b", 0, 0),
        ("a", "y" * 65, 0, 0),
        ("a\x00", "b", 0, 0),
        ("a", "\x1f", 0, 0),
        ("a\x9f", "b", 0, 0),
        ("a", "b\n", 0, 0),
        ("\ud800", "b", 0, 0),
        ("a", "b", -1, 0),
        ("a", "b", 1, 0),
        ("a", "b", 0, 2**63),
    ],
)
def test_identities_without_a_valid_key_are_rejected(
    agent: str, boot: str, start: int, end: int
) -> None:
    with pytest.raises(InvalidFrame):
        Identity(agent_id=agent, boot_id=boot, seq_start=start, seq_end=end)


def test_identity_keeps_text_as_it_is() -> None:
    """There is no normalization: two spellings of one letter are two agents; spaces and dots are
    kept.
    """
    composed = Identity(agent_id="\u00e9", boot_id=" ", seq_start=3, seq_end=3)
    apart = Identity(agent_id="e\u0301", boot_id=" ", seq_start=3, seq_end=3)
    assert accepted_key(composed) != accepted_key(apart)
    assert parse_accepted_key(accepted_key(apart)) == apart
    assert apart.count == 1


def test_digests_have_one_form() -> None:
    """Upper case and other lengths are not digests."""
    assert parse_digest(HEX) == DIGEST
    for text in (HEX.upper(), HEX[:-1], HEX + "0", "", HEX + "\n"):
        with pytest.raises(ValueError, match=r".*"):
            parse_digest(text)


def test_lanes_are_pinned() -> None:
    """The lane of an agent never changes: first 8 bytes of its sha256, big-endian."""
    assert [lane_of(agent, 4) for agent in ("host-1", "host-2", "é", "a")] == [
        int(digest_of(agent.encode())[:16], 16) % 4 for agent in ("host-1", "host-2", "é", "a")
    ]
    assert {lane_of(f"host-{n}", 4) for n in range(100)} == {0, 1, 2, 3}


def test_metric_segments_are_bounded() -> None:
    """Long names are hashed, so that a segment fits every file system."""
    assert metric_segment("cpu") == "637075"
    assert metric_segment("x" * 121) == f"sha256-{digest_of(b'x' * 121)}"


def test_errors_have_one_root() -> None:
    """A handler of `SluiceError` handles a bad key and a bad identity."""
    assert issubclass(InvalidRecord, SluiceError)
    assert issubclass(InvalidFrame, SluiceError)


def test_pack_key_sorts_by_its_last_instant_and_contains_its_span() -> None:
    """A listing from an instant on contains every packed object with a later entry."""
    folder = f"accepted-by-time/v1/{hour_path(AT_NS)}"
    span = PackSpan(first_ns=UnixNs(AT_NS - 5), last_ns=AT_NS)
    key = pack_key(folder, span, DIGEST)
    assert key == f"{folder}/{AT_NS:020d}-{AT_NS - 5:020d}-{DIGEST[:32]}.ndjson"
    assert parse_pack_key(key) == span
    assert key > f"{folder}/{AT_NS:020d}"
    assert parse_pack_key(accepted_by_time_key(accepted_key(WHO), AT_NS)) is None
    assert parse_pack_key(raw_blob_by_time_key(DIGEST, AT_NS)) is None
