"""The tables of `docs/policies.md`, drawn from the requirements, the matrix and the documents."""

from collections.abc import Iterator
from typing import Final

from sluice_policies.access_matrix import MATRIX, Verb
from sluice_policies.policy_set import PolicySet
from sluice_policies.render import inexpressible
from sluice_policies.requirements import (
    REQUIREMENTS,
    Requirement,
    probes_of,
    statements_of,
)

BEGIN: Final = "<!-- drawn by sluice_policies.documentation: {name} -->"
END: Final = "<!-- end -->"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names) or "-"


def _enforced(requirement: Requirement, policies: PolicySet) -> str:
    parts = tuple(f"{part.value}.json" for part in requirement.parts)
    return _code((*statements_of(requirement, policies), *parts))


def requirements_table(policies: PolicySet) -> Iterator[str]:
    """Yields each requirement with its statements, properties, probes and risk."""
    yield _row("requirement", "enforced by", "proved by", "tried by", "without it")
    yield _row(*["---"] * 5)
    for item in REQUIREMENTS:
        yield _row(
            item.says,
            _enforced(item, policies),
            _code(item.properties),
            _code(probes_of(item)),
            item.risk,
        )


def roles_table() -> Iterator[str]:
    """Yields each role with what it does and where."""
    verbs = tuple(Verb)
    yield _row("role", "does", *(verb.value for verb in verbs))
    yield _row(*["---"] * (2 + len(verbs)))
    for name, rights in MATRIX.items():
        cells = (" ".join(f"`{p}`" for p in rights.prefixes.get(verb, ())) or "-" for verb in verbs)
        yield _row(f"`{name.value}`", rights.purpose, *cells)


def statements_table(policies: PolicySet) -> Iterator[str]:
    """Yields each statement of the bucket policy with its reason."""
    yield _row("statement", "because")
    yield _row("---", "---")
    for statement in policies.bucket.statements:
        yield _row(f"`{statement.sid}`", statement.reason)


def missing_table(policies: PolicySet) -> Iterator[str]:
    """Yields what a target cannot express."""
    yield _row("what is lost", "why")
    yield _row("---", "---")
    for item in inexpressible(policies):
        yield _row(item.what, item.why)


def updated_page(text: str, tables: dict[str, str]) -> str:
    """Gives a page with each table between its marks drawn anew."""
    for name, table in tables.items():
        head, mark, rest = text.partition(BEGIN.format(name=name))
        _, _, tail = rest.partition(END)
        text = f"{head}{mark}\n{table}\n{END}{tail}" if mark else text
    return text


def tables(aws: PolicySet, versitygw: PolicySet) -> dict[str, str]:
    """Gives every table by name."""
    return {
        "requirements": "\n".join(requirements_table(aws)),
        "roles": "\n".join(roles_table()),
        "statements": "\n".join(statements_table(aws)),
        "versitygw": "\n".join(missing_table(versitygw)),
    }
