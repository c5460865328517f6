"""The example of `docs/client.md` is what the implementation sends, byte for byte."""

import base64
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import nacl.signing
import pytest
from msgspec import structs

from sluice_gateway.uploads.acceptor import AcceptedResponse
from sluice_gateway.uploads.principals import parse_principals
from sluice_protocol.errors import ErrorCode, InvalidFrame, TooLarge
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.records import LogRecord, logs_from_records
from sluice_protocol.signatures import sign_request
from sluice_protocol.units import FRAME_BYTES_MAX
from sluice_protocol.upload_http import ListedFrame, encode_frame_list
from sluice_web.problems import problem_of, problem_response

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHO = Identity(agent_id="host-1", boot_id="boot-1", seq_start=7, seq_end=8)


def blocks(section: str) -> list[str]:
    """Return the examples of a section."""
    return BLOCK.findall(PAGE.split(f"## {section}\n")[1].split("\n## ")[0])


def shown_bytes(block: str) -> bytes:
    """Return the bytes of an example in hexadecimal, without their meanings."""
    return bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines()))


FRAME = shown_bytes(blocks("A frame")[1])
TYPED = shown_bytes(blocks("Attributes and their types")[1])


@pytest.mark.parametrize(
    ("section", "shown"), [("A frame", FRAME), ("Attributes and their types", TYPED)]
)
def test_the_frame_is_the_one_that_the_command_makes(section: str, shown: bytes) -> None:
    lines = [line.encode() for line in blocks(section)[0].splitlines() if line.startswith("{")]
    made = encode_frame(
        identity=WHO, columns=columns_from_ndjson("logs", lines), resource=(), compress=False
    )
    assert made == shown
    assert f"{len(shown)} bytes, and its sha256 is `{hashlib.sha256(shown).hexdigest()}`" in PAGE
    assert decode_frame(shown).identity == WHO


def page_encoder() -> Callable[[str, str, int, list[tuple[int, str]]], bytes]:
    """Return the function `frame` of the program on the page."""
    program: dict[str, Callable[[str, str, int, list[tuple[int, str]]], bytes]] = {}
    exec(blocks("A frame")[2], program)  # noqa: S102
    return program["frame"]


def test_the_program_of_the_page_makes_the_frame() -> None:
    lines = [json.loads(line) for line in blocks("A frame")[0].splitlines() if line[0] == "{"]
    records = [(line["ts"], line["body"]) for line in lines]
    assert page_encoder()("host-1", "boot-1", 7, records) == FRAME


@pytest.mark.parametrize("line_bytes", [0, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("seq_start", [0, 23, 24, 255, 65_536, 2**32, 2**62])
def test_the_program_of_the_page_encodes_as_the_implementation(
    line_bytes: int, seq_start: int
) -> None:
    records = [(place * 1_000_003 % 400, "ä" * (place % 2)) for place in range(300)]
    records.append((9, "x" * line_bytes))
    made = page_encoder()("größe" * 8, "b", seq_start, records)
    columns = logs_from_records([LogRecord(ts_ns=at_ns, body=body) for at_ns, body in records])
    who = Identity(agent_id="größe" * 8, boot_id="b", seq_start=seq_start, seq_end=seq_start + 300)
    assert made == encode_frame(identity=who, columns=columns, compress=False)


def test_the_request_has_the_signature_of_the_shown_bytes() -> None:
    entry, base, request = blocks("The signature")
    seed = re.search(r"32 bytes `([0-9a-f]{64})`", PAGE)
    assert seed is not None
    key = nacl.signing.SigningKey(bytes.fromhex(seed[1]))
    fields = dict(line.split(": ", 1) for line in request.splitlines()[1:])
    signed = {name: value for name, value in fields.items() if name.startswith("Content-")}
    digest = base64.b64encode(hashlib.sha256(FRAME).digest()).decode()
    assert signed == {
        "Content-Digest": f"sha-256=:{digest}:",
        "Content-Length": str(len(FRAME)),
        "Content-Type": "application/vnd.lightmetrics.batch",
    }
    made = sign_request(
        key=Signer(key),
        key_id="host-1-key",
        method="POST",
        authority=fields["Host"],
        path="/v1/batches",
        headers=signed,
        created_s=1_790_000_000,
    )
    assert made == {name: fields[name] for name in ("Signature-Input", "Signature")}
    signature = base64.b64decode(fields["Signature"].removeprefix("sluice=:").removesuffix(":"))
    key.verify_key.verify(base.removesuffix("\n").encode(), signature)
    assert base64.b64encode(bytes(key.verify_key)).decode() in entry
    parse_principals(entry)


class Signer:
    """A key that returns the signature alone."""

    def __init__(self, key: nacl.signing.SigningKey) -> None:
        self._key = key

    def sign(self, data: bytes, /) -> bytes:
        return self._key.sign(data).signature


def test_the_list_is_the_shown_head_and_the_frame() -> None:
    (head,) = blocks("A list of frames")
    listed = ListedFrame(frame=FRAME, sent_before=True, high_water=8)
    assert shown_bytes(head) + FRAME == encode_frame_list([listed])


def test_the_response_has_every_field() -> None:
    shown, _ = blocks("The response")
    assert list(json.loads(shown)) == sorted(one.name for one in structs.fields(AcceptedResponse))


def test_the_refusal_is_the_problem_document_of_a_gateway() -> None:
    _, shown = blocks("The response")
    limit = FRAME_BYTES_MAX
    problem = problem_of(ErrorCode.TOO_LARGE, str(TooLarge("body", limit + 1, limit)))
    assert shown.encode().strip() == problem_response(problem).body


BODY_AT = 95
"""Where the column `body` of the example begins."""


def changed(old: str, new: str) -> bytes:
    """Return the example with other bytes of the same meaning or length, in its envelope."""
    before, after = bytes.fromhex(old), bytes.fromhex(new)
    assert FRAME.count(before) == 1
    made = FRAME.replace(before, after)
    return made[:6] + struct.pack("<H", 71 + len(after) - len(before)) + made[8:]


def with_columns(ts: bytes = FRAME[79:BODY_AT], body: bytes = FRAME[BODY_AT:]) -> bytes:
    """Return the example with other bytes in its columns, and their lengths and checksums."""
    made = FRAME[:79]
    for old, new in ((FRAME[79:BODY_AT], ts), (FRAME[BODY_AT:], body)):
        before, after = (struct.pack("<BBI", len(one), 0x44, zlib.crc32(one)) for one in (old, new))
        made = made.replace(before, after)
    return made + ts + body


def with_types(types: bytes) -> bytes:
    """Return the example with attributes with other types, and their checksum."""
    checksums = [struct.pack("<I", zlib.crc32(one)) for one in (TYPED[-4:], types)]
    return TYPED.replace(*checksums)[:-4] + types


MISTAKES = {
    "the envelope is a map": changed("8a66686f7374", "aa66686f7374"),
    "`envelope_bytes` is 70": FRAME[:6] + b"\x46\x00" + FRAME[8:],
    "`seq_start` is 7 in two bytes": changed("070802", "18070802"),
    "`count` is 3": changed("070802", "070803"),
    "`max_ts` is that of the first record": changed("1b18d75b8423f30001", "1b18d75b8423f30000"),
    "the column `body` is named `message`": changed("64626f6479", "676d657373616765"),
    "the type of `body` is 8, with lengths of one byte": changed("64626f647906", "64626f647908"),
    "the coding of `ts` is 0": changed("6274730401", "6274730400"),
    "the coding of `body` is 2, without zstd": changed("6479060010", "6479060210"),
    "the offset of `body` counts from the start of the frame": changed("79060010", "790600185f"),
    "a checksum is big-endian": changed("442a6f53a9", "44a9536f2a"),
    "`ts` has both times instead of a difference": with_columns(
        ts=struct.pack("<2q", 1_790_000_000_000_000_000, 1_790_000_000_000_000_001)
    ),
    "`body` has the ends 5 and 11 instead of lengths": with_columns(
        body=b"\x05\x0b" + FRAME[BODY_AT + 2 :]
    ),
    "the type of `body` is 8, with lengths of four bytes": with_columns(
        body=struct.pack("<2I", 5, 6) + b"helloworld!"
    ).replace(b"body\x06", b"body\x08"),
    "`hello` is not UTF-8": with_columns(body=FRAME[BODY_AT:].replace(b"hello", b"hell\xff")),
    "a byte follows the columns": FRAME + b"\x00",
    "with attributes: the last `attr_type` is 1": with_types(b"\2\0\1\1"),
    "with attributes: the last `attr_type` is 6": with_types(b"\2\0\1\6"),
    "with attributes: each `attr_type` is 0": with_types(b"\0\0\0\0"),
    "the last byte is missing": FRAME[:-1],
}


@pytest.mark.parametrize("change", MISTAKES)
def test_a_mistake_has_the_shown_detail(change: str) -> None:
    assert MISTAKES[change] != FRAME
    with pytest.raises(InvalidFrame) as refused:
        decode_frame(MISTAKES[change])
    assert f"| {change} | {refused.value} |" in PAGE


def test_every_shown_mistake_is_tested() -> None:
    rows = PAGE.split("## Common mistakes\n")[1].count("\n| ")
    assert rows == len(MISTAKES) + 1
