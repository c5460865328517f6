"""Grafana's editor and sluice accept the same LogQL texts, but for a few documented ones.

The editor's grammar knows the forms of LogQL. It does not know which label, number or pattern has a
meaning, so sluice refuses some texts that it accepts: by the word, with its column.
"""

import json
import re
import subprocess

import pytest
from support.client_programs import NODE
from support.golden import GOLDEN

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
