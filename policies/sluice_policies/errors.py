"""Errors in settings and documents; each names the place and the remedy."""

from sluice_protocol.errors import BadUsage, SluiceError


class BadSettings(BadUsage):
    """A settings file that cannot be used.

    Attributes:
        line: The line with the error, counted from 1.
        reason: The error and its remedy.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        """Return `path:line: reason`, the form that editors and compilers use."""
        return f"{self.path}:{self.line}: {self.reason}"


class BadDocument(BadUsage):
    """A policy document that is not valid: broken JSON, a missing element, a duplicate key."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"policy document is not valid: {self.reason}, where=`{self.where}`"


class UnsupportedPolicy(BadUsage):
    """A valid element that this evaluator does not decide; it never guesses.

    The statement is named by Sid or index.
    """

    def __init__(self, where: str, element: str) -> None:
        super().__init__(where, element)
        self.where = where
        self.element = element

    def __str__(self) -> str:
        return (
            f"policy not decided: sluice evaluates only what it renders; use the store's own "
            f"simulator, where=`{self.where}`, element=`{self.element}`"
        )


class TargetCannot(BadUsage):
    """A document that a target cannot express."""


class NotApplied(SluiceError):
    """A document that does not read back as it was written: stop and inspect the bucket."""

    def __init__(self, document: str, reason: str) -> None:
        super().__init__(document, reason)
        self.document = document
        self.reason = reason

    def __str__(self) -> str:
        return f"policies not applied: {self.reason}, document=`{self.document}`"
