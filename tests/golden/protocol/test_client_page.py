"""The example of `docs/client.md` is what the implementation sends, byte for byte."""

import base64
import hashlib
import json
import re
from pathlib import Path

import nacl.signing
import pytest
from msgspec import structs

from sluice_gateway.principals import parse_principals
from sluice_gateway.uploads import AcceptedResponse
from sluice_protocol.errors import ErrorCode, InvalidFrame, TooLarge
from sluice_protocol.frame import check_frame, decode_frame, encode_frame
from sluice_protocol.frame_lists import ListedFrame, encode_frame_list
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import columns_from_ndjson
from sluice_protocol.signatures import sign_request
from sluice_protocol.units import FRAME_BYTES_MAX
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


def test_the_frame_is_the_one_that_the_command_makes() -> None:
    lines = [line.encode() for line in blocks("A frame")[0].splitlines() if line.startswith("{")]
    made = encode_frame(
        identity=WHO, columns=columns_from_ndjson("logs", lines), resource=(), compress=False
    )
    assert made == FRAME
    assert f"{len(FRAME)} bytes, and its sha256 is `{hashlib.sha256(FRAME).hexdigest()}`" in PAGE
    assert decode_frame(FRAME).identity == WHO


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


MISTAKES = {
    "`payload_raw_bytes` is 65": FRAME[:16] + b"\x41" + FRAME[17:],
    "a byte follows the payload": FRAME + b"\x00",
    "the last byte is missing": FRAME[:-1],
    "`flags` is 1, without zstd": FRAME[:6] + b"\x01" + FRAME[7:],
    "`count` is 3": FRAME.replace(b"ecount\x02", b"ecount\x03"),
    "`max_ts` is that of the first record": FRAME.replace(
        bytes.fromhex("1b18d75b8423f30001"), bytes.fromhex("1b18d75b8423f30000")
    ),
    "the last offset is 10": FRAME[:-4] + b"\x0a\x00\x00\x00",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_a_mistake_has_the_shown_detail(change: str) -> None:
    assert MISTAKES[change] != FRAME
    with pytest.raises(InvalidFrame) as refused:
        check_frame(MISTAKES[change])
    assert f"| {change} | {refused.value} |" in PAGE


def test_every_shown_mistake_is_tested() -> None:
    rows = PAGE.split("## Common mistakes\n")[1].count("\n| ")
    assert rows == len(MISTAKES) + 1
