"""The wrappers of CRI and Docker: parts, streams, traces inside, and what paths state."""

import json
from collections.abc import Callable

import pytest

from sluice_agent.inputs.containers import (
    GAP_LINES,
    PARTS_MAX,
    Unwrap,
    WrappedGroups,
    group_wrapped,
    pod_attributes,
    unwrap_cri,
    unwrap_docker,
)

Make = Callable[..., bytes]
AT = "2026-11-28T10:00:00.{:09d}Z"
NS = 1_795_860_000_000_000_000


def cri(stream: str, tag: str, text: str, ns: int = 1) -> bytes:
    return f"{AT.format(ns)} {stream} {tag} {text}".encode()


def docker(stream: str, tag: str, text: str, ns: int = 1) -> bytes:
    log = text if tag == "P" else text + "\n"
    one = {"log": log, "stream": stream, "time": AT.format(ns)}
    return json.dumps(one, separators=(",", ":")).encode()


FORMS = {"cri": (cri, unwrap_cri), "docker": (docker, unwrap_docker)}
form = pytest.mark.parametrize(("make", "unwrap"), FORMS.values(), ids=FORMS)


def texts(found: WrappedGroups) -> list[str]:
    return [f"{one.line.stream} {one.text.decode()}" for one in found.groups]


@form
def test_parts_are_joined_by_stream(make: Make, unwrap: Unwrap) -> None:
    lines = [
        make("stdout", "P", "one ", 1), make("stderr", "P", "two ", 2),
        make("stdout", "P", "and ", 3), make("stderr", "F", "ends", 4),
        make("stdout", "F", "more", 5), make("stdout", "F", "", 6),
    ]  # fmt: skip
    found = group_wrapped(lines, unwrap, complete=True)
    assert texts(found) == ["stdout one and more", "stderr two ends", "stdout "]
    assert [one.line.ts_ns for one in found.groups] == [NS + 1, NS + 2, NS + 6]
    assert not any(one.continues for one in found.groups)


@form
def test_a_trace_is_joined_by_stream(make: Make, unwrap: Unwrap) -> None:
    lines = [
        make("stderr", "F", 'Exception in thread "main" java.lang.Error: x'),
        make("stdout", "F", "order 1"),
        make("stderr", "F", "\tat A.b(A.java:1)"),
        make("stdout", "F", "order 2"),
        make("stderr", "F", "next"),
    ]  # fmt: skip
    assert texts(group_wrapped(lines, unwrap, complete=True)) == [
        'stderr Exception in thread "main" java.lang.Error: x\n\tat A.b(A.java:1)',
        "stdout order 1",
        "stdout order 2",
        "stderr next",
    ]


@form
def test_lines_are_read_again_from_the_first_that_is_incomplete(make: Make, unwrap: Unwrap) -> None:
    """Not from inside a group of the other stream, which would be read again in part."""
    lines = [
        make("stdout", "F", "before"),
        make("stderr", "F", "trace"),
        make("stdout", "F", "open"),
        make("stderr", "F", "\tat a"),
        make("stderr", "F", "after"),
    ]
    found = group_wrapped(lines, unwrap)
    assert (texts(found), found.open_from, found.is_ordinary) == (["stdout before"], 1, True)
    found = group_wrapped([*lines[:2], make("stdout", "P", "part")], unwrap)
    assert (texts(found), found.open_from, found.is_ordinary) == ([], 0, False)


@form
def test_a_part_that_is_never_completed_ends_with_later_lines(make: Make, unwrap: Unwrap) -> None:
    part = make("stderr", "P", "never")
    later = [make("stdout", "F", str(n)) for n in range(PARTS_MAX + 2)]
    found = group_wrapped([part, *later], unwrap)
    assert texts(found)[:2] == ["stderr never", "stdout 0"]
    assert [one.continues for one in found.groups[:2]] == [True, False]
    late = json.loads(json.dumps("2026-11-28T10:00:05Z")).encode()
    other = make("stdout", "F", "x").replace(AT.format(1).encode(), late)
    found = group_wrapped([part, other, other], unwrap)
    assert texts(found) == ["stderr never", "stdout x"]


@form
def test_a_quiet_stream_does_not_hold_the_other_back(make: Make, unwrap: Unwrap) -> None:
    lines = [make("stderr", "F", "quiet")] + [
        make("stdout", "F", str(n)) for n in range(GAP_LINES + 2)
    ]
    found = group_wrapped(lines, unwrap)
    assert found.open_from == len(lines) - 1
    assert len(found.groups) == len(lines) - 1


@form
def test_a_line_of_more_parts_than_the_bound_is_several_records(make: Make, unwrap: Unwrap) -> None:
    lines = [make("stdout", "P", str(n % 10)) for n in range(2 * PARTS_MAX)]
    lines.append(make("stdout", "F", "end"))
    found = group_wrapped(lines, unwrap, complete=True)
    assert "".join(one.text.decode() for one in found.groups) == "0123456789" * 200 + "end"
    assert [one.continues for one in found.groups] == [True, True, False]


@form
def test_a_line_of_another_form_is_kept_as_it_is(make: Make, unwrap: Unwrap) -> None:
    lines = [make("stdout", "F", "a"), b"no wrapper", b'{"log":1}', make("stdout", "F", "b")]
    found = group_wrapped(lines, unwrap, complete=True)
    assert texts(found) == ["stdout a", " no wrapper", ' {"log":1}', "stdout b"]
    assert found.groups[1].line.ts_ns is None


def test_docker_states_further_fields() -> None:
    line = b'{"log":"x\\n","stream":"stdout","attrs":{"tag":"web"},"time":"2026-11-28T10:00:00Z"}'
    found = unwrap_docker(line)
    assert found is not None
    assert found.attributes == (("tag", "web"),)


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-28T10:00:00Z stdout X text", b"2026-11-28T10:00:00Z stdin F text",
        b"2026-13-28T10:00:00Z stdout F text", b"2026-11-28T10:00:00Z stdoutF", b"", b"x",
        b"9" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_line_of_cri(line: bytes) -> None:
    assert unwrap_cri(line) is None


UID = "0f1e2d3c-0000-4000-8000-0123456789ab"
POD = f"/var/log/pods/shop_web-7d9f-abcde_{UID}/nginx/2.log"
CONTAINER = f"/var/log/containers/web-7d9f-abcde_shop_my-nginx-{'ab' * 32}.log"


def test_paths_of_kubelet_state_the_pod() -> None:
    assert pod_attributes(POD) == {
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-7d9f-abcde",
        "k8s.pod.uid": UID,
        "k8s.container.name": "nginx",
        "k8s.container.restart_count": "2",
    }
    assert pod_attributes(CONTAINER) == {
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-7d9f-abcde",
        "k8s.container.name": "my-nginx",
        "container.id": "ab" * 32,
    }
    assert pod_attributes(CONTAINER, POD)["k8s.pod.uid"] == UID
    assert pod_attributes(f"{POD}.20261128-100000") == pod_attributes(POD)
    assert pod_attributes("/var/log/syslog", "/var/log/pods/x/0.log") == {}
