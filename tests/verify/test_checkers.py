"""Each checker accepts a correct history and finds each planted violation."""

import json
import random
import subprocess
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest
from verify.checking import build_checkers, check_history

from sluice_cli.verify.checks import UploadTry, check_register

CLEAN = Path(__file__).parent / "clean"
"""Conflict, retry after an unknown outcome, refusal, door, agent and query, with a gap."""
pytestmark = pytest.mark.s3  # Go builds the checkers, as it builds the S3 server


class Planted(NamedTuple):
    """One text of the clean history, replaced; and the beginning of the violation."""

    checker: str
    file: str
    old: str
    new: str
    found: str


SECOND_ROW = '{"kind": "row", "agent": "a", "boot": "b", "seq": 1, "body": "p1 1"}\n'
ROW = '{"kind": "row", "agent": "a", "boot": "b", "seq": 4, "body": "p3 0"}\n'
FOREIGN = '{"kind": "row", "agent": "a", "boot": "b", "seq": 0, "body": "p9 0"}\n'
REFUSED = '{"kind": "row", "agent": "a", "boot": "b", "seq": 6, "body": "p4 0"}\n'
UNSENT = '{"kind": "quarantine", "identity": "a/b/4-5", "sha256": "ff", "blob": "ff"}\n'
MANIFEST = '{"kind": "manifest", "identity": "a/b/4-5", "sha256": "cc", "blob": "cc"}\n'
QUARANTINE = '{"kind": "quarantine", "identity": "a/b/0-1", "sha256": "bb", "blob": "bb"}\n'
GAP = '{"kind": "gap", "agent": "a", "boot": "b", "from": 2, "to": 3}\n'
CONFLICT = '"op": 2, "event": "fail", "time": 21, "result": "conflict"'
DUPLICATE = '"op": 3, "event": "ok", "time": 25, "result": "duplicate"'
FIRST = '"op": 1, "event": "invoke", "call": "upload", "time": 10'
LOST = '"op": 4, "event": "invoke", "call": "upload", "time": 30'
DOOR = '"records": 1}\n{"client": 3, "op": 7, "event": "ok"'
SEEN = '"p3 1", "p5 0"'
PLANTED = {
    "two owners of an identity": Planted(
        "register",
        "history.jsonl",
        CONFLICT,
        CONFLICT.replace("fail", "ok").replace("conflict", "new"),
        "register: no",
    ),
    "a conflict with itself": Planted(
        "register",
        "history.jsonl",
        DUPLICATE,
        DUPLICATE.replace("ok", "fail").replace("duplicate", "conflict"),
        "register: no",
    ),
    "accepted as new twice": Planted(
        "register",
        "history.jsonl",
        DUPLICATE,
        DUPLICATE.replace("duplicate", "new"),
        "register: no",
    ),
    "a conflict before other bytes": Planted(
        "register", "history.jsonl", FIRST, FIRST.replace("10", "22"), "register: no"
    ),
    "a duplicate before the first upload": Planted(
        "register", "history.jsonl", LOST, LOST.replace("30", "41"), "register: no"
    ),
    "a refused batch with a manifest": Planted(
        "register",
        "state.jsonl",
        MANIFEST,
        MANIFEST.replace("4-5", "6-6") + MANIFEST,
        "register: no",
    ),
    "an accepted batch without a manifest": Planted(
        "register", "state.jsonl", MANIFEST, "", "register: no"
    ),
    "a success without a receipt": Planted(
        "facts", "state.jsonl", MANIFEST, "", "receipt: the manifest"
    ),
    "a receipt of other bytes": Planted(
        "facts", "state.jsonl", MANIFEST, MANIFEST.replace("cc", "ee"), "receipt: the manifest"
    ),
    "a damaged blob": Planted(
        "facts",
        "state.jsonl",
        MANIFEST,
        MANIFEST.replace('"blob": "cc"', '"blob": "ee"'),
        "receipt: the blob",
    ),
    "a lost record": Planted("facts", "state.jsonl", ROW, "", "once: an accepted record"),
    "a lost record of a door": Planted(
        "facts", "state.jsonl", '"body": "p5 0"', '"body": "p5 9"', "row: no client"
    ),
    "a doubled record": Planted(
        "facts", "state.jsonl", ROW, ROW + ROW, "once: a record is in the table 2"
    ),
    "an invented record": Planted("facts", "state.jsonl", ROW, ROW + FOREIGN, "row: no client"),
    "a refused record": Planted("facts", "state.jsonl", ROW, ROW + REFUSED, "once: a refused"),
    "a record of the refused side of a conflict": Planted(
        "facts",
        "state.jsonl",
        SECOND_ROW,
        SECOND_ROW.replace("p1", "p2"),
        "once: an accepted record",
    ),
    "a part of an unknown batch": Planted(
        "facts",
        "history.jsonl",
        DOOR,
        DOOR.replace("1", "2").replace("ok", "unknown"),
        "once: a part",
    ),
    "a record at another place": Planted(
        "facts", "state.jsonl", ROW, ROW.replace('"seq": 4', '"seq": 5'), "order:"
    ),
    "a conflict without quarantine": Planted(
        "facts", "state.jsonl", QUARANTINE, "", "conflict: refused bytes"
    ),
    "quarantine without a conflict": Planted(
        "facts", "state.jsonl", QUARANTINE, QUARANTINE + UNSENT, "conflict: quarantine"
    ),
    "a lost refused blob": Planted(
        "facts",
        "state.jsonl",
        QUARANTINE,
        QUARANTINE.replace('"blob": "bb"', '"blob": ""'),
        "conflict: the refused blob",
    ),
    "a gap that is not reported": Planted(
        "facts", "state.jsonl", GAP, GAP.replace('"to": 3', '"to": 2'), "gap: a missing"
    ),
    "a gap that does not exist": Planted(
        "facts", "state.jsonl", GAP, GAP.replace('"from": 2', '"from": 1'), "gap: a number"
    ),
    "an answer ahead of the truth": Planted(
        "facts", "history.jsonl", SEEN, '"p3 1"', "answer: it is complete"
    ),
    "a record twice in an answer": Planted(
        "facts", "history.jsonl", SEEN, '"p3 1", "p3 1", "p5 0"', "answer: a record is in it twice"
    ),
    "a record before it was sent": Planted(
        "facts", "history.jsonl", SEEN, '"p3 1", "p7 0", "p5 0"', "answer: a record was not"
    ),
    "a fault that never fired": Planted(
        "facts", "faults.jsonl", "kill_gateway", "stop_gateway", "fault: it never"
    ),
}


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkers(tmp_path_factory.mktemp("checkers"))


@pytest.mark.parametrize("checker", ["register", "facts"])
def test_a_correct_history_has_no_violation(checkers: Path, checker: str) -> None:
    verdict = check_history(checkers, checker, CLEAN)
    assert verdict["violations"] == []
    assert (verdict["operations"], verdict["unknown"], verdict["identities"]) == (9, 1, 3)


@pytest.mark.parametrize(
    ("reason", "excepted"),
    [
        ("1 batch could not be ingested (corrupt)", 1),
        ("batches accepted after 9 may be missing", 0),
    ],
)
def test_an_answer_may_except_batches_that_it_reports(
    reason: str, excepted: int, checkers: Path, tmp_path: Path
) -> None:
    folder = copytree(CLEAN, tmp_path / "history")
    text = (folder / "history.jsonl").read_text()
    text = text.replace(', "p5 0"]', f'], "reasons": [{json.dumps(reason)}]')
    (folder / "history.jsonl").write_text(text)
    verdict = check_history(checkers, "facts", folder)
    assert (verdict["excepted"], verdict["broken"]) == (excepted, 1 - excepted)


def test_records_that_could_not_be_read_are_not_compared(checkers: Path, tmp_path: Path) -> None:
    folder = copytree(CLEAN, tmp_path / "history")
    facts = (folder / "state.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in facts if '"kind": "row"' not in line]
    (folder / "state.jsonl").write_text("".join(kept))
    assert check_history(checkers, "facts", folder)["broken"] > 0
    meta = json.loads((folder / "meta.json").read_text()) | {"unread": ["row"]}
    (folder / "meta.json").write_text(json.dumps(meta))
    assert check_history(checkers, "facts", folder)["broken"] == 0


def random_tries(rng: random.Random, identity: str) -> list[UploadTry]:
    tries = []
    for _ in range(rng.randint(1, 4)):
        result = rng.choice(("new", "duplicate", "conflict", "refused", "unknown"))
        start = rng.randrange(10)
        end = None if result == "unknown" else start + rng.randrange(1, 10)
        sha256 = rng.choice(("aa", "aa", "bb"))
        tries.append(
            UploadTry(
                identity=identity, sha256=sha256, payload="p", records=1, result=result,
                start_ns=start, end_ns=end,
            )
        )  # fmt: skip
    return tries


@pytest.mark.parametrize("seed", range(50))
def test_the_check_of_the_command_agrees_with_porcupine(
    seed: int, checkers: Path, tmp_path: Path
) -> None:
    """`sluice verify` and Porcupine decide the same about random tries of 20 identities."""
    rng = random.Random(seed)
    folder = copytree(CLEAN, tmp_path / "history")
    found, lines, state, op = set(), [], [], 0
    for identity in (f"a/b/{number}-{number}" for number in range(20)):
        owner, tries = rng.choice(("", "aa", "aa", "bb")), random_tries(rng, identity)
        if owner:
            state.append({"kind": "manifest", "identity": identity, "sha256": owner})
        if check_register(tries, owner):
            found.add(identity)
        for one in tries:
            op += 1
            event = {"op": op, "event": "invoke", "call": "upload", "time": one.start_ns}
            lines.append({**event, "identity": identity, "sha256": one.sha256})
            if one.end_ns is not None:
                lines.append({"op": op, "event": "ok", "time": one.end_ns, "result": one.result})
    for name, facts in (("history.jsonl", lines), ("state.jsonl", state)):
        (folder / name).write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    violations = check_history(checkers, "register", folder)["violations"]
    assert {line.partition("identity=")[2] for line in violations} == found
    assert found


def test_many_lost_responses_of_one_batch_do_not_delay_the_register_check(
    checkers: Path, tmp_path: Path
) -> None:
    """Each order of forty uploads with an unknown outcome would be a search without an end."""
    folder = copytree(CLEAN, tmp_path / "history")
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    tries = []
    for line in lines[6:8]:  # the try whose response was lost
        event = json.loads(line)
        tries += [json.dumps({**event, "op": 100 + number}) + "\n" for number in range(40)]
    (folder / "history.jsonl").write_text("".join([*lines[:8], *tries, *lines[8:]]))
    verdict = check_history(checkers, "register", folder)
    assert (verdict["unknown"], verdict["violations"]) == (41, [])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, checkers: Path, tmp_path: Path) -> None:
    planted = PLANTED[name]
    folder = copytree(CLEAN, tmp_path / "history")
    text = (folder / planted.file).read_text()
    assert planted.old in text
    (folder / planted.file).write_text(text.replace(planted.old, planted.new, 1))
    verdict: dict[str, Any] = check_history(checkers, planted.checker, folder)
    assert any(line.startswith(planted.found) for line in verdict["violations"]), verdict


DELETED = """\
{"client": 50, "op": 20, "event": "invoke", "call": "delete", "time": 60, "payload": "p5"}
{"client": 50, "op": 20, "event": "ok", "time": 65, "result": "deleted"}
{"client": 5, "op": 21, "event": "invoke", "call": "query", "time": 70, "from": 0, "to": 100}
{"client": 5, "op": 21, "event": "ok", "time": 75, "until": 70, "seen": ["p1 0", \
"p1 1", "p3 0", "p3 1"]}
"""
DELETED_ROW = '{"kind": "row", "agent": "door:shop:01", "boot": "x", "seq": 0, "body": "p5 0"}\n'


@pytest.mark.parametrize(
    ("old", "new", "row", "found"),
    [
        ("", "", False, None),
        ('"op": 20, "event": "ok"', '"op": 20, "event": "unknown"', True, None),
        ('"p3 1"]', '"p3 1", "p5 0"]', False, "delete: a deleted record is in an answer"),
        ("", "", True, "delete: a deleted record is in the table"),
        ('"payload": "p5"', '"payload": "p4"', False, "once: an accepted record is not"),
        ('"p3 0", "p3 1"]', '"p3 0"]', False, "answer: it is complete"),
    ],
    ids=["correct", "unknown", "in an answer", "in the table", "another", "too much"],
)
def test_only_deleted_records_are_missing(
    old: str, new: str, row: bool, found: str | None, checkers: Path, tmp_path: Path
) -> None:
    """After a delete its records are gone, and no others."""
    folder = copytree(CLEAN, tmp_path / "history")
    with (folder / "history.jsonl").open("a") as file:
        file.write(DELETED.replace(old, new) if old else DELETED)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "compacted": True}))
    state = (folder / "state.jsonl").read_text()
    assert DELETED_ROW in state
    (folder / "state.jsonl").write_text(state if row else state.replace(DELETED_ROW, ""))
    violations = check_history(checkers, "facts", folder)["violations"]
    assert [line[: len(found)] for line in violations][:1] == [found] if found else not violations


ERASED = """\
{"client": 50, "op": 20, "event": "invoke", "call": "delete", "time": 60, "payload": "p3"}
{"client": 50, "op": 21, "event": "invoke", "call": "erase", "time": 60, "payload": "p3", \
"identity": "a/b/4-5", "sha256": "cc"}
{"client": 50, "op": 20, "event": "ok", "time": 65, "result": "deleted"}
{"client": 50, "op": 21, "event": "ok", "time": 70, "result": "erased"}
{"client": 99, "op": 22, "event": "invoke", "call": "upload", "time": 72, "identity": "a/b/4-5", \
"sha256": "99", "payload": "p8", "records": 2}
{"client": 99, "op": 22, "event": "fail", "time": 73, "result": "conflict"}
{"client": 99, "op": 23, "event": "invoke", "call": "upload", "time": 74, "identity": "a/b/4-5", \
"sha256": "cc", "payload": "p3", "records": 2}
{"client": 99, "op": 23, "event": "ok", "time": 75, "result": "duplicate"}
"""
EXPIRED = MANIFEST.replace('"blob": "cc"', '"blob": ""')
TOMBSTONE = '{"kind": "tombstone", "identity": "a/b/4-5", "sha256": "cc"}\n'
RIVAL = '{"kind": "quarantine", "identity": "a/b/4-5", "sha256": "99", "blob": "99"}\n'
LEFT = ROW + ROW.replace('"seq": 4', '"seq": 5').replace("p3 0", "p3 1")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", None),
        (EXPIRED, EXPIRED + LEFT, "erase: an erased record is in the table"),
        (EXPIRED, MANIFEST, "erase: the blob is left"),
        (EXPIRED, EXPIRED + '{"kind": "version", "sha256": "cc"}\n', "erase: a version"),
        (TOMBSTONE, "", "erase: the batch has no tombstone"),
        (TOMBSTONE, TOMBSTONE + TOMBSTONE.replace("4-5", "0-1"), "erase: a batch has expired"),
        (EXPIRED, "", "receipt: the manifest"),
        ('"op": 21, "event": "ok"', '"op": 21, "event": "unknown"', "erase: it has not ended"),
        ('"time": 74', '"time": 69', "erase: no later upload is a duplicate"),
        ('"event": "fail", "time": 73, "result": "conflict"', '"event": "unknown", "time": 73',
         "erase: no later upload is a conflict"),
        ('"event": "fail", "time": 73, "result": "conflict"',
         '"event": "ok", "time": 73, "result": "new"', "receipt: the manifest"),
    ],
    ids=[
        *("correct", "rows", "blob", "version", "no tombstone", "another batch", "no manifest"),
        *("not ended", "not sent again", "no other bytes", "another owner"),
    ],
)  # fmt: skip
def test_an_erasure_leaves_only_the_manifest_and_the_owner(
    old: str, new: str, found: str | None, checkers: Path, tmp_path: Path
) -> None:
    """Each text of the history or the state is replaced, and that is the violation."""
    folder = copytree(CLEAN, tmp_path / "history")
    state = (folder / "state.jsonl").read_text().replace(MANIFEST, EXPIRED + TOMBSTONE + RIVAL)
    assert LEFT in state
    state = state.replace(LEFT, "")
    history = (folder / "history.jsonl").read_text() + ERASED
    assert not old or (old in state) + (old in history) == 1
    (folder / "state.jsonl").write_text(state.replace(old, new) if old else state)
    (folder / "history.jsonl").write_text(history.replace(old, new) if old else history)
    violations = check_history(checkers, "facts", folder)["violations"]
    if found is None:
        assert violations == []
        assert check_history(checkers, "register", folder)["violations"] == []
    else:
        assert any(line.startswith(found) for line in violations), violations


@pytest.mark.parametrize(
    ("sha256", "time", "broken"), [("cc", 50, 0), ("bb", 50, 0), ("99", 200, 0), ("99", 50, 1)]
)
def test_an_old_blob_without_a_record_is_found(
    sha256: str, time: int, broken: int, checkers: Path, tmp_path: Path
) -> None:
    """Blobs of batches and of conflicts stay, and so does one that is younger than the plan."""
    folder = copytree(CLEAN, tmp_path / "history")
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "collected_before": 100}))
    with (folder / "state.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "blob", "sha256": sha256, "time": time}) + "\n")
    verdict = check_history(checkers, "facts", folder)
    assert verdict["broken"] == broken
    assert all(line.startswith("space: an old blob") for line in verdict["violations"])


@pytest.mark.parametrize(
    "line", ["{", json.dumps({"op": 99, "event": "ok"}), json.dumps({"op": 1, "event": "invoke"})]
)
def test_a_history_that_cannot_be_read_is_an_error(
    line: str, checkers: Path, tmp_path: Path
) -> None:
    folder = copytree(CLEAN, tmp_path / "history")
    with (folder / "history.jsonl").open("a") as file:
        file.write(line + "\n")
    done = subprocess.run(
        [str(checkers), "facts", str(folder)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 2
    assert "history.jsonl:19:" in done.stderr
