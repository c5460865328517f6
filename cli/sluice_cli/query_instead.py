"""What to write instead of an option of another tool that `sluice query` does not have."""

import re
from shlex import quote
from typing import Final

_FILTER: Final = re.compile(
    r"(!?)(?:attributes\.|resource\.)?([^=!<>~]+?) *(?:([=!<>~]+) *(.*))?", re.DOTALL
)
_FORMS: Final = {
    "--text": "-q {quoted}",
    "--regex": "'{{}} |~ \"PATTERN\"'",
    "--ignore-case": "'{{}} |~ \"(?i)TEXT\"'",
    "-i": "'{{}} |~ \"(?i)TEXT\"'",
    "--agent": "'{{agent=\"{value}\"}}'",
    "--service": "'{{service=\"{value}\"}}'",
    "--host": "'{{host=\"{value}\"}}'",
    "--level": "'{{level=\"{value}\"}}'",
    "--severity": "'{{level=\"{value}\"}}'",
    "--histogram": "--plot",
    "--stats-only": "--plot",
    "--stats": "--plot",
    "--csv": "--output csv",
    "--parquet": "--output parquet",
    "--last": "--since {value}",
    "--newest-first": "--order newest",
    "--tail": "--follow",
    "--reconciler": "--follow",
    "--reconciler-token": "--follow",
}
"""What to write after `sluice query` instead of another option."""
_COMMANDS_OF: Final = {
    "--metric": "metrics {quoted}",
    "--raw": "metrics NAME",
    "--agg": "metrics NAME --agg {value}",
    "--by": "metrics NAME --by {value}",
    "--top": "fields {quoted}",
    "--of": "fields {quoted}",
}


def describe_query_option(option: str, value: str) -> str:
    """Return what to write instead of an option that `sluice query` does not have; else empty."""
    shown = value[:80] if value and not value.startswith("-") else "VALUE"
    if option in {"--filter", "--attribute", "--where", "--label", "-l", "--match"}:
        written = f"query '{_selector(shown)}'"
    elif option in _COMMANDS_OF or option in _FORMS:
        form = _COMMANDS_OF.get(option) or f"query {_FORMS[option]}"
        written = form.format(value=shown, quoted=quote(shown))
    else:
        return ""
    return f"no such option: write `sluice {written}`, option=`{option}`"


def _selector(text: str) -> str:
    """Return a condition on a field as LogQL."""
    found = _FILTER.fullmatch(text)
    if found is None or not found[2]:
        return '{LABEL="VALUE"}'
    label = re.sub(r"\W", "_", found[2], flags=re.ASCII)
    label = {"agent_id": "agent", "service_name": "service"}.get(label, label)
    if found[3] is None:
        return f'{{{label}{"=" if found[1] else "!="}""}}'
    if found[3][0] in "<>":
        return f"{{}} | {label} {found[3]} {found[4]}"
    escaped = found[4].replace("\\", "\\\\").replace('"', '\\"')
    return f'{{{label}{found[3]}"{escaped}"}}'
