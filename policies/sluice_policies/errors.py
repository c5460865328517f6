"""What can be wrong with settings and documents, each naming where and what to do."""

from sluice_protocol.errors import BadUsage, SluiceError


class BadSettings(BadUsage):
    """A settings file that cannot be used.

    Attributes:
        path: The file.
        line: The line that is wrong, counted from 1.
        reason: What is wrong and what to write instead.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        """Carries the file, the line and the reason."""
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        """Says where, as compilers do, so that editors can jump there."""
        return f"{self.path}:{self.line}: {self.reason}"


class BadDocument(BadUsage):
    """A policy document that is not one: broken JSON, a missing element, a duplicate key."""

    def __init__(self, where: str, reason: str) -> None:
        """Carries the place in the document and the reason."""
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        """Says where and why."""
        return f"policy document: {self.reason}, where=`{self.where}`"


class UnsupportedPolicy(BadUsage):
    """A valid element that this evaluator does not decide; it never guesses an answer.

    Attributes:
        where: The statement, by Sid or index.
        element: The operator, element or variable.
    """

    def __init__(self, where: str, element: str) -> None:
        """Carries the statement and the element."""
        super().__init__(where, element)
        self.where = where
        self.element = element

    def __str__(self) -> str:
        """Says what cannot be decided."""
        return (
            "policy not decided: sluice evaluates only what it renders, ask the store's own"
            f" simulator, where=`{self.where}`, element=`{self.element}`"
        )


class TargetCannot(BadUsage):
    """A document that a target has no means to hold."""


class NotApplied(SluiceError):
    """A configuration that does not read back as it was written: stop and look."""

    def __init__(self, document: str, reason: str) -> None:
        """Carries the document and the reason."""
        super().__init__(document, reason)
        self.document = document
        self.reason = reason

    def __str__(self) -> str:
        """Says which document stands otherwise than written."""
        return f"not applied: {self.reason}, document=`{self.document}`"
