"""What programs write: each format, its recognition, bad input, and UTF-16."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent_formats import ARRIVED_NS, Reader, cri, docker, read_whole

from sluice_agent.inputs.files import GROUP_WAIT_S, LINE_WAIT_S
from sluice_agent.inputs.formats import HEAD_LINES, pattern_matches
from sluice_agent.inputs.grouping import GROUP_AGE_S
from sluice_agent.inputs.line_readers import LINE_BYTES_MAX
from sluice_agent.settings import Format, split_format
from sluice_protocol.errors import BadUsage

NS = 1_795_860_000_000_000_000
"""2026-11-28T10:00:00Z."""
LOGFMT = b'time=2026-11-28T10:00:00Z level=info msg="hello \\"you\\"" took=3ms empty= flag\n'
SYSLOG = b"<11>1 2026-11-28T10:00:00Z host-1 shop 42 - - paid\n"
FIELDS = {"host.name": "host-1", "service.name": "shop", "syslog.procid": "42"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.mark.parametrize("stated", [Format.AUTO, Format.JSON])
def test_lines_of_json_are_read_as_the_door_does(log: Path, stated: Format) -> None:
    data = b'{"time":"2026-11-28T10:00:00Z","message":"a","n":1,"in":{"x":true}}\n'
    data += b'{"@timestamp":1795860000001,"log":"b"}\n{"m":0}\n'
    assert read_whole(log, data, format=stated) == [
        (NS, "a", 0, {"n": "1", "in.x": "true"}),
        (NS + 1_000_000, "b", 0, {}),
        (ARRIVED_NS, "", 0, {"m": "0"}),
    ]


def test_a_time_inside_an_object_is_kept_next_to_a_line_without_a_time(log: Path) -> None:
    """The time is no attribute, so it would be lost."""
    data = b'{"message":"a","t":{"$date":"2026-11-28T10:00:00Z"}}\n{"message":"b"}\n'
    assert read_whole(log, data) == [(NS, "a", 0, {}), (ARRIVED_NS, "b", 0, {})]


@pytest.mark.parametrize("stated", [Format.AUTO, Format.LOGFMT])
def test_pairs_of_logfmt_are_attributes(log: Path, stated: Format) -> None:
    attributes = {"level": "info", "took": "3ms", "empty": "", "flag": ""}
    expected = (NS, 'hello "you"', 0, attributes)
    assert read_whole(log, LOGFMT, format=stated) == [expected]


@pytest.mark.parametrize("stated", [Format.AUTO, Format.SYSLOG])
def test_messages_of_syslog_are_read_as_those_that_an_agent_receives(
    log: Path, stated: Format
) -> None:
    expected = (NS, "paid", 17, {**FIELDS, "syslog.facility": "1"})
    assert read_whole(log, SYSLOG, format=stated) == [expected]


def test_files_of_syslog_daemons_have_no_priority(log: Path) -> None:
    line = b"2026-11-28T10:00:00Z host-1 shop[42]: paid\n"
    assert read_whole(log, line, format=Format.SYSLOG) == [(NS, "paid", 0, FIELDS)]
    assert read_whole(log, line) == [(NS, line.decode().strip(), 0, {})]
    ((_, body, _, attributes),) = read_whole(log, b"no syslog\n", format=Format.SYSLOG)
    assert (body, attributes) == ("no syslog", {"sluice.error": "message has no priority"})


@pytest.mark.parametrize("make", [cri, docker])
def test_lines_in_a_wrapper_are_read_in_their_own_format(
    log: Path, make: Callable[..., bytes]
) -> None:
    data = make("stderr", "F", "banner", 1)
    data += make("stdout", "P", '{"message":"a","time":"2026-', 2)
    data += make("stdout", "F", '11-28T10:00:00Z"}', 3) + make("stdout", "F", '{"message":"b"}', 4)
    data += make("stderr", "F", "Exception in thread", 5) + make("stderr", "F", "\tat x", 6)
    assert read_whole(log, data) == [
        (NS + 1, "banner", 0, {"log.iostream": "stderr"}),
        (NS, "a", 0, {"log.iostream": "stdout"}),
        (NS + 4, "b", 0, {"log.iostream": "stdout"}),
        (NS + 5, "Exception in thread\n\tat x", 0, {"log.iostream": "stderr"}),
    ]


def test_lines_without_the_stated_form_are_text_with_an_error(log: Path) -> None:
    data = b'no\n{"message":"a"}\n{"b":\n[1]\n'
    assert [(body, found) for _, body, _, found in read_whole(log, data, format=Format.JSON)] == [
        ("no", {"sluice.error": "line is not json"}),
        ("a", {}),
        ('{"b":', {"sluice.error": "line is not json"}),
        ("[1]", {"sluice.error": "line is not json"}),
    ]
    found = read_whole(log, b"no\n" + cri("stdout", "F", "yes"), format=Format.CRI)
    assert found[0][3] == {"sluice.error": "line is not cri"}
    assert found[1][3] == {"log.iostream": "stdout"}


def test_a_file_that_changes_its_form_loses_nothing(log: Path) -> None:
    """The first form of the first lines counts; other lines are text."""
    data = b'banner\n\n{"message":"a"}\nplain\n\tindented\n' + SYSLOG + b'{"message":"b"}\n'
    bodies = [body for _, body, _, _ in read_whole(log, data)]
    assert bodies == ["banner", "", "a", "plain\n\tindented", SYSLOG.decode().strip(), "b"]


def test_a_file_of_text_stays_text(log: Path) -> None:
    data = b"line\n" * HEAD_LINES + b'{"message":"a"}\n' + SYSLOG + LOGFMT
    assert [body for _, body, _, _ in read_whole(log, data)][HEAD_LINES:] == [
        '{"message":"a"}', SYSLOG.decode().strip(), LOGFMT.decode().strip(),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["user=1 failed", "a=b c=d", "1 + 1 = 2", 'key="open', "{}x"])
def test_what_looks_like_another_form_is_text(log: Path, text: str) -> None:
    assert read_whole(log, text.encode() + b"\n") == [(ARRIVED_NS, text, 0, {})]


def test_objects_with_errors_are_kept(log: Path) -> None:
    """Deep ones, a time that cannot be read, half of a pair, bytes that are no UTF-8."""
    deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
    data = b'{"message":"a"}\n' + deep + b"\n"
    data += b'{"time":"never","message":"b"}\n{"message":"\\ud800"}\n{"message":"\xff"}\n'
    found = read_whole(log, data)
    assert [body for _, body, _, _ in found] == [
        "a", deep.decode(), "b", '{"message":"\\ud800"}', '{"message":"\ufffd"}',
    ]  # fmt: skip
    assert found[2][3]["time"] == "never"
    assert "sluice.error" in found[2][3]
    assert "sluice.raw" in found[4][3]


def test_an_object_of_8_mib_is_kept_in_pieces(log: Path) -> None:
    line = b'{"message":"' + b"x" * 8 * 1024 * 1024 + b'"}'
    found = read_whole(log, b'{"message":"a"}\n' + line + b'\n{"message":"b"}\n')
    assert "".join(body for _, body, _, _ in found[1:-1]) == line.decode()
    assert [len(one[1]) <= LINE_BYTES_MAX for one in found] == [True] * len(found)
    assert ["sluice.continues" in one[3] for one in found[1:-1]] == [True] * 8 + [False]
    assert found[-1][1] == "b"


def test_attributes_of_the_agent_do_not_replace_those_of_an_object(log: Path) -> None:
    ((_, _, _, attributes),) = read_whole(log, b'{"log.file.path":"mine","message":"a"}\n')
    assert attributes == {"log.file.path#2": str(log)}


def test_the_last_lines_wait_for_more(log: Path) -> None:
    """A line shortly, a trace longer; a kill meanwhile reads it again as a whole."""
    reader = Reader(log)
    log.write_bytes(b"one\n")
    assert reader.poll() == []
    assert reader.poll(LINE_WAIT_S) == [(ARRIVED_NS, "one", 0, {})]
    with log.open("ab") as file:
        file.write(b"two\n\tat a\n")
    reader.poll()
    reader.restart()
    assert reader.poll(LINE_WAIT_S) == []
    with log.open("ab") as file:
        file.write(b"\tat b\n")
    assert reader.poll(GROUP_WAIT_S - 0.1) == []
    assert reader.poll(GROUP_WAIT_S) == [(ARRIVED_NS, "two\n\tat a\n\tat b", 0, {})]


def test_a_part_that_is_never_completed_is_sent(log: Path) -> None:
    """After a while without a further line, and marked; the lines before it do not wait for it."""
    log.write_bytes(cri("stdout", "F", "before") + cri("stdout", "P", "part"))
    reader = Reader(log)
    reader.poll()
    assert reader.poll(GROUP_WAIT_S) == [
        (NS + 1, "before", 0, {"log.iostream": "stdout"}),
        (NS + 1, "part", 0, {"log.iostream": "stdout", "sluice.continues": "true"}),
    ]


def test_a_pattern_states_the_first_lines(log: Path) -> None:
    data = b"#1\nb\n#2\n c\nd\n"
    found = read_whole(log, data, multiline_start="^#")
    assert [body for _, body, _, _ in found] == ["#1\nb", "#2\n c\nd"]
    wrapped = b"".join(cri("stdout", "F", one.decode()) for one in data.splitlines())
    found = read_whole(log, wrapped, multiline_start="^#")
    assert [body for _, body, _, _ in found] == ["#1\nb", "#2\n c\nd"]
    found = read_whole(log, b"a\n b\n\n{}\n", multiline_start="^", format=Format.TEXT)
    assert [body for _, body, _, _ in found] == ["a", " b", "", "{}"]
    with pytest.raises(BadUsage, match="multiline_start=`\\(`"):
        pattern_matches("(")


def test_a_format_is_stated_before_a_pattern(log: Path) -> None:
    assert split_format("cri:/var/log/x:*.log") == (Format.CRI, "/var/log/x:*.log")
    assert split_format("/a:b", Format.JSON) == (Format.JSON, "/a:b")
    line = b'{"message":"a"}\n'
    found = read_whole(log, line, patterns=(f"text:{log}", str(log.with_name("*.log"))))
    assert found == [(ARRIVED_NS, '{"message":"a"}', 0, {})]


@pytest.mark.parametrize(
    ("encoding", "bom"), [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")]
)
def test_utf_16_is_read_by_its_byte_order_mark(log: Path, encoding: str, bom: bytes) -> None:
    text = "2026-11-28 10:00:00Z é\r\nb \U0001f600\r\n\tat c\r\nlast\r\n"
    data = bom + text.encode(encoding)
    reader = Reader(log)
    for at in range(0, len(data), 7):
        with log.open("ab") as file:
            file.write(data[at : at + 7])
        reader.poll(0.01)
        if at % 3 == 0:
            reader.restart()
    reader.poll()
    reader.poll(GROUP_WAIT_S)
    assert [body for _, body, _, _ in reader.records] == [
        "2026-11-28 10:00:00Z é", "b \U0001f600\n\tat c", "last",
    ]  # fmt: skip
    assert reader.records[0][0] == NS
    found = read_whole(log, bom + '{"message":"ü"}\n'.encode(encoding))
    assert [body for _, body, _, _ in found] == ["ü"]
    broken = bom + "a\n".encode(encoding) + "\ud800".encode(encoding, "surrogatepass") * 2
    found = read_whole(log, broken + "\nb\n".encode(encoding))
    assert [body for _, body, _, _ in found] == ["a", "\ufffd\ufffd", "b"]
    long = "é" * LINE_BYTES_MAX
    found = read_whole(log, bom + (long + "\nend\n").encode(encoding))
    assert "".join(body for _, body, _, _ in found[:-1]) == long


def test_kubernetes_metadata_is_an_attribute_of_each_record(tmp_path: Path) -> None:
    folder = tmp_path / "pods" / "shop_web-0_0f1e" / "nginx"
    folder.mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    file = folder / "0.log"
    link = tmp_path / "containers" / f"web-0_shop_nginx-{'ab' * 32}.log"
    link.symlink_to(file)
    ((_, body, _, attributes),) = read_whole(link, cri("stdout", "F", "x"))
    assert body == "x"
    assert attributes == {
        "log.iostream": "stdout", "container.id": "ab" * 32, "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-0", "k8s.pod.uid": "0f1e", "k8s.container.name": "nginx",
        "k8s.container.restart_count": "0",
    }  # fmt: skip


def test_an_object_whose_dotted_names_are_far_larger_than_it_is_text(log: Path) -> None:
    """Names of several such lines would not fit into a frame, at each start of the agent again."""
    found = {"msg": "a", "k" * 100: {str(number): 1 for number in range(4000)}}
    line = json.dumps(found, separators=(",", ":"))
    assert read_whole(log, line.encode() + b"\n") == [(ARRIVED_NS, line, 0, {})]


def test_half_of_a_pair_of_utf_16_does_not_change_the_identity_of_a_file(log: Path) -> None:
    half = "\ud800 a\n".encode("utf-16-le", "surrogatepass")
    log.write_bytes(b"\xff\xfe" + half)
    reader = Reader(log)
    for number in range(3):
        reader.poll(GROUP_WAIT_S)
        reader.poll(GROUP_WAIT_S)
        with log.open("ab") as file:
            file.write(f"{number}\n".encode("utf-16-le"))
    reader.poll(GROUP_WAIT_S)
    reader.poll(GROUP_WAIT_S)
    assert [body for _, body, _, _ in reader.records] == ["\ufffd a", "0", "1", "2"]


def test_a_record_that_still_grows_ends_after_some_time(log: Path) -> None:
    """Programs such as vmstat begin every line with a space."""
    reader = Reader(log)
    for number in range(3 * int(GROUP_AGE_S)):
        with log.open("ab") as file:
            file.write(f" {number}\n".encode())
        reader.poll(1.0)
    assert 2 <= len(reader.records) <= 3
    assert reader.records[0][1].count("\n") < 2 * GROUP_AGE_S


def test_a_pattern_of_text_does_not_join_objects(log: Path) -> None:
    data = b'{"message":"a"}\n{"message":"b"}\ntext\n 1\n'
    found = read_whole(log, data, multiline_start="^[0-9]{4}-")
    assert [body for _, body, _, _ in found] == ["a", "b", "text\n 1"]
    wrapped = b"".join(cri("stdout", "F", one.decode()) for one in data.splitlines()[:2])
    found = read_whole(log, wrapped, multiline_start="^[0-9]{4}-")
    assert [body for _, body, _, _ in found] == ["a", "b"]


def test_a_line_of_docker_with_another_stream_is_text(log: Path) -> None:
    lines = docker("stdout", "F", "a") + docker("other", "F", "b")
    assert [body for _, body, _, _ in read_whole(log, lines)] == [
        "a", docker("other", "F", "b").decode().rstrip(),
    ]  # fmt: skip


def test_a_label_of_a_container_is_no_time_or_body(log: Path) -> None:
    labels = {"time": "2020-01-01T00:00:00Z", "message": "label", "env": "prod"}
    one = {"log": '{"n":1}\n', "stream": "stdout", "attrs": labels}
    line = json.dumps(one | {"time": "2026-11-28T10:00:00Z"}, separators=(",", ":"))
    [(ns, body, _, attributes)] = read_whole(log, line.encode() + b"\n")
    assert (ns, body) == (NS, "")
    assert attributes == {
        "n": "1", "env": "prod", "docker.time": labels["time"], "docker.message": "label",
        "log.iostream": "stdout",
    }  # fmt: skip


def test_a_message_of_syslog_without_a_time_has_that_of_its_wrapper(log: Path) -> None:
    [(ns, body, _, _)] = read_whole(log, cri("stdout", "F", "<11>1 - host-1 shop 42 - - paid"))
    assert (ns, body) == (NS + 1, "paid")


@pytest.mark.parametrize("text", ["time=3 then some words", "x=y plain words here time=3"])
def test_a_sentence_with_a_pair_is_text(log: Path, text: str) -> None:
    assert read_whole(log, text.encode() + b"\n") == [(ARRIVED_NS, text, 0, {})]
