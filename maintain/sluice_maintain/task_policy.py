"""The settings that every task of maintenance has: when it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from sluice_maintain.tasks import TaskName
from sluice_maintain.time_windows import parse_windows
from sluice_protocol.errors import BadUsage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Job = TypeVar("Job", bound=DataclassInstance)

DAY_S: Final = 86_400.0


@contextmanager
def checking(task: TaskName) -> Iterator[None]:
    """Name the table of a task in the errors about its settings."""
    try:
        yield
    except BadUsage as error:
        raise BadUsage(f"cannot run maintenance: in [maintain.{task.value}], {error}") from error


def job_of(kind: "type[Job]", policy: object, **more: Any) -> "Job":  # noqa: ANN401 - values of several types
    """Return the settings of a job: those that the policy has too, and the given ones."""
    shared = {
        one.name: getattr(policy, one.name) for one in fields(kind) if hasattr(policy, one.name)
    }
    return kind(**{**shared, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """When a task runs.

    Attributes:
        enabled: Whether this process runs the task.
        every_s: Seconds from the start of a run to the start of the next.
        window: When the task may start, in UTC: `22:00-04:00`, or `sat 00:00-24:00`, separated by
            commas. Empty means always.
        timeout_s: Longest run; a longer one is stopped and counts as failed. 0 means no limit.
        jitter: Share of `every_s` by which a start is delayed at most, 0.0 to 1.0.
        backoff_s: Pause after a failed run; it doubles with each further failure.
        backoff_max_s: Longest pause after failed runs.
        profile: AWS profile with the credentials of the task; empty for those of the process.
    """

    task: ClassVar[TaskName]

    enabled: bool = True
    every_s: float = DAY_S
    window: str = ""
    timeout_s: float = 6 * 3600.0
    jitter: float = 0.05
    backoff_s: float = 60.0
    backoff_max_s: float = 3600.0
    profile: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadUsage: A number is out of range, or the window has another form.
        """
        where = f"[maintain.{self.task.value}]"
        for name, low in (("every_s", 1), ("backoff_s", 1), ("timeout_s", 0), ("jitter", 0)):
            if not getattr(self, name) >= low:
                raise BadUsage(
                    f"cannot run maintenance: {name} in {where} must be at least {low},"
                    f" {name}=`{getattr(self, name)}`"
                )
        if self.jitter > 1 or self.backoff_max_s < self.backoff_s:
            raise BadUsage(
                f"cannot run maintenance: jitter in {where} must be at most 1, and backoff_max_s at"
                f" least backoff_s, jitter=`{self.jitter}`, backoff_max_s=`{self.backoff_max_s}`"
            )
        with checking(self.task):
            parse_windows(self.window)
            self._check()

    def _check(self) -> None:
        """Check the settings that only this task has; their errors name its table.

        Raises:
            BadUsage: A number is out of range.
        """
