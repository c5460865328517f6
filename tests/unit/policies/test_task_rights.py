"""Roles can run the tasks of maintenance, and no role certifies what it deletes."""

import pytest

from sluice_maintain.tasks import TaskName
from sluice_policies.access_matrix import BASIS_OF_DELETION, MATRIX, Verb, prefixes_of
from sluice_policies.settings import RoleName
from sluice_protocol import keys
from sluice_protocol.maintenance import LEASES, TASK_RIGHTS, TaskRights, union_of


def lacks(role: RoleName, rights: TaskRights) -> list[tuple[Verb, str]]:
    """Return the rights that a role does not have."""
    mine = dict(MATRIX[role].prefixes)
    mine[Verb.DELETE_VERSION] = (*mine.get(Verb.DELETE_VERSION, ()), *mine.get(Verb.DELETE, ()))
    return [
        (verb, prefix)
        for verb, prefixes in prefixes_of(rights).items()
        for prefix in prefixes
        if not prefix.startswith(mine.get(verb, ()))
    ]


def test_each_task_has_rights() -> None:
    assert set(TASK_RIGHTS) == set(TaskName)


@pytest.mark.parametrize(
    ("role", "tasks"),
    [
        (RoleName.MAINTAINER, set(TaskName) - {TaskName.AUDIT, TaskName.GC, TaskName.EXPIRE}),
        (RoleName.SPARK, {TaskName.INGEST, TaskName.ROLLUP, TaskName.COMPACT, TaskName.INDEX}),
        (RoleName.OPERATOR, {TaskName.RETENTION}),
        (RoleName.RECONCILER, {TaskName.QUEUE}),
        (RoleName.CERTIFIER, {TaskName.AUDIT, TaskName.EXPIRE}),
        (RoleName.GC, {TaskName.GC, TaskName.NONCURRENT}),
        (RoleName.GATEWAY, set()),
        (RoleName.AUDITOR, set()),
        (RoleName.DEPLOYER, set()),
    ],
)
def test_the_tasks_that_a_role_can_run(role: RoleName, tasks: set[TaskName]) -> None:
    runs = {task for task in TaskName if lacks(role, union_of([LEASES, TASK_RIGHTS[task]])) == []}
    assert runs == tasks


def test_the_maintainer_has_no_right_that_none_of_its_tasks_needs() -> None:
    tasks = [one for name, one in TASK_RIGHTS.items() if name not in ("audit", "gc", "expire")]
    for verb, prefixes in MATRIX[RoleName.MAINTAINER].prefixes.items():
        needed = {p for one in (LEASES, *tasks) for p in prefixes_of(one).get(verb, ())}
        assert set(prefixes) <= needed


def test_no_role_certifies_and_deletes() -> None:
    for rights in MATRIX.values():
        deletes = keys.RAW_BLOBS in rights.prefixes.get(Verb.DELETE_VERSION, ())
        certifies = set(rights.prefixes.get(Verb.WRITE, ())) & set(BASIS_OF_DELETION)
        assert not (deletes and certifies)


def test_a_union_contains_no_prefix_twice() -> None:
    both = union_of(
        [TaskRights(reads=("a/b/", "c/")), TaskRights(reads=("a/", "c/"), writes=("a/b/",))]
    )
    assert both == TaskRights(reads=("c/", "a/"), writes=("a/b/",))
