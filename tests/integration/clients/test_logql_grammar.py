"""Grafana's editor and sluice accept the same LogQL texts, but for a few documented ones.

The editor's grammar knows the forms of LogQL. It does not know which label, number or pattern has a
meaning, so sluice refuses some texts that it accepts: by the word, with its column.
"""

import json
import random
import re
import subprocess

import pytest
from support.client_programs import NODE
from support.golden import GOLDEN

from sluice_protocol.errors import BadUsage
from sluice_query.logql.grammar import parse_logql

pytestmark = [pytest.mark.clients]

PROGRAM = """
import { parser } from '@grafana/lezer-logql';
let input = '';
for await (const part of process.stdin) input += part;
const accepts = (text) => {
  let whole = true;
  parser.parse(text).iterate({ enter: (node) => { whole &&= !node.type.isError; } });
  return whole;
};
console.log(JSON.stringify(JSON.parse(input).map(accepts)));
"""
EXTENSIONS = {
    "{}": "selects all records",
    '{} |= "hello"': "selects all records",
    "count_over_time({}[1m])": "selects all records",
    '{json="x", by="y", or="z"}': "a word of the language is a label where only a label can be",
    '{app="shop"} | (json="x")': "a word of the language is a label where only a label can be",
    '{app="shop"} | size > 1kb': "sizes have either case, as in Loki",
    '{app="shop"} | status>=500 level="error"': "a space joins conditions, as in Loki",
}


def accepted_by_grafana(texts: list[str]) -> dict[str, bool]:
    if not (NODE / "node_modules/@grafana/lezer-logql").exists():
        pytest.skip("@grafana/lezer-logql is missing: run `deploy/clients/build.sh node_clients`")
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", PROGRAM],
        cwd=NODE,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(zip(texts, json.loads(done.stdout), strict=True))


def cases(name: str) -> dict[str, str]:
    return json.loads((GOLDEN / f"logql/{name}.json").read_text(encoding="utf-8"))


def test_what_sluice_accepts_is_accepted_by_grafana() -> None:
    found = accepted_by_grafana(list(cases("accepted")))
    assert {text for text, accepted in found.items() if not accepted} == EXTENSIONS.keys()


def test_what_only_grafana_accepts_is_refused_by_name() -> None:
    refused = cases("refused")
    found = accepted_by_grafana(list(refused))
    only = [text for text, accepted in found.items() if accepted]
    assert len(only) > 50
    for text in only:
        assert re.search(r", column=`\d+`, word=`.+`: .", refused[text]), text


SELECTORS = ('{app="shop"}', '{app=~"s.*", env!="x"}', "{app=`shop`, host!~`a|b`}", '{app="é"}')
STAGES = (
    *("| json", "| logfmt", "| unpack", "| decolorize", '| pattern "<a> <_> <b>"'),
    *('| json a="b.c", d="e[0]"', "| logfmt --strict a, b", '| regexp "(?P<a>.*)"'),
    *('|= "x"', "|= `x` or `y`", '!= "z"', '|~ "a|b"', '!~ "c"', '|> "<_> a"', '!> "b <_>"'),
    *('|= ip("10.0.0.0/8")', '| a = ip("10.0.0.1")', '| a="b"', '| a=~"b.*" or c!="d"', "| a > 5"),
    *("| a >= 10ms and b < 5MB", '| line_format "{{.a}}"', '| label_format a=b, c="{{.d}}"'),
    *('| drop a, b="c"', "| keep a", '| label_format a="{{ .b | ToUpper }}"', "| distinct a"),
    *('| line_format `{{ if eq .a "b" }}c{{ end }}`', '| (a="b" and c="d") or e=~"f"'),
)
RANGES = (
    *("rate", "count_over_time", "bytes_over_time", "bytes_rate", "absent_over_time"),
    *("rate_counter", "sum_over_time", "avg_over_time", "stddev_over_time", "first_over_time"),
    *("max_over_time", "last_over_time", "quantile_over_time"),
)
VECTORS = (
    "sum",
    "avg",
    "min",
    "max",
    "count",
    "stddev",
    "sort",
    "sort_desc",
    "topk",
    "approx_topk",
)


def generated(count: int, seed: int) -> list[str]:
    """Return texts of every form of the grammar, also of forms that sluice does not have."""
    rng = random.Random(seed)

    def logs() -> str:
        stages = (rng.choice(STAGES) for _ in range(rng.randrange(4)))
        return " ".join([rng.choice(SELECTORS), *stages])

    def leaf() -> str:
        name = rng.choice(RANGES)
        unwrap = rng.choice(("", "", " | unwrap a", " | unwrap duration(a)", " | unwrap bytes(b)"))
        offset = rng.choice(("", "", " offset 5m"))
        first = "0.9, " if name == "quantile_over_time" else ""
        by = rng.choice(("", "", " by (a)", " without (b)", " by ()"))
        return f"{name}({first}{logs()}{unwrap} [{rng.choice(('5m', '1h30m'))}]{offset}){by}"

    def metric(depth: int) -> str:
        if not depth:
            return rng.choice((leaf(), leaf(), "vector(1)"))
        inner = metric(depth - 1)
        name = rng.choice(VECTORS)
        first = "3, " if name.endswith("topk") else ""
        by = rng.choice(("", " by (a, b)", " without (c)"))
        joined = rng.choice(("+", "/", "and", "or", "unless", "> bool", "==", "^", "%"))
        how = rng.choice(("", " on (a)", " ignoring (b)", " on (a) group_left (c)"))
        return rng.choice(
            (
                f"{name}{by} ({first}{inner})",
                f"{inner} {joined}{how} {metric(depth - 1)}",
                f"({inner}) {joined} 2",
                f'label_replace({inner}, "a", "$1", "b", "(.*)")',
            )
        )

    return [rng.choice((logs(), metric(rng.randrange(3)))) for _ in range(count)]


def refusal(text: str) -> str:
    """Return why sluice refuses a text; empty if it does not."""
    try:
        parse_logql(text)
    except BadUsage as error:
        return str(error)
    return ""


def test_generated_texts_are_answered_or_refused_by_name() -> None:
    """No text of Grafana's grammar is refused without a word, its column and what to write."""
    found = accepted_by_grafana(list(dict.fromkeys(generated(3_000, seed=1))))
    accepted = [text for text, whole in found.items() if whole]
    refused = {text: why for text in accepted if (why := refusal(text))}
    assert len(accepted) > 1_000
    assert 100 < len(refused) < len(accepted) - 100
    for text, why in refused.items():
        assert re.search(r", column=`\d+`, word=`.+`: .", why), (text, why)
