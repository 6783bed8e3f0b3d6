"""The package's exceptions. All derive from `SkillmeshError`: problems that the user can fix.

Every message says what was found, what was expected and what to do. Code that calls skillmesh as a library
catches `SkillmeshError`; the command turns it into one line and exit status 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

_read_by = "program"


@contextmanager
def messages_for_commands() -> Iterator[None]:
    """Make messages name command-line options inside this context; otherwise they name Python arguments."""
    global _read_by
    _read_by = "command"
    try:
        yield
    finally:
        _read_by = "program"


def option(python: str, command: str) -> str:
    """Return an option as the reader of the message would write it: in Python, or on the command line.

    >>> option("replace=True", "--replace")
    'replace=True'
    """
    return command if _read_by == "command" else python


class SkillmeshError(ValueError):
    """A problem that the user can fix: a wrong path, a damaged file, a setting that does not fit.

    Examples
    --------
    >>> try:
    ...     agent.predict("nowhere.jpg")
    ... except SkillmeshError as error:
    ...     print(type(error).__name__)
    DataError
    """

    lines: tuple[str, ...] = ()
    """Lines of a message that has several. A line break inside quoted text does not start a new line."""

    @classmethod
    def of_lines(cls, *lines: str) -> Self:
        """Return an error whose message is shown on several lines."""
        error = cls("\n".join(lines))
        error.lines = lines
        return error


class DataError(SkillmeshError):
    """A folder or zip that cannot be read as a task.

    Examples
    --------
    >>> agent.learn("nowhere")
    Traceback (most recent call last):
        ...
    skillmesh.errors.DataError: ...nowhere...
    """


class FolderOfTasksError(DataError):
    """A folder or zip that looks like several tasks, where one was expected."""

    def __init__(self, message: str, tasks: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tasks = tasks
        """Names of the folders and zips inside that look like tasks."""


class ArgumentError(SkillmeshError):
    """An argument of a function that has the wrong type or a value that is not allowed.

    Examples
    --------
    >>> agent.learn("photos/dice", replace="yes")
    Traceback (most recent call last):
        ...
    skillmesh.errors.ArgumentError: replace: found 'yes' (str); expected True or False
    """


class BackboneError(SkillmeshError):
    """A backbone that cannot be built, or weights that do not fit it.

    Examples
    --------
    >>> Backbone.load("no such network")
    Traceback (most recent call last):
        ...
    skillmesh.errors.CalibrationError: no calibration is shipped for 'no such network'; ...
    """


class CalibrationError(BackboneError):
    """A calibration that is missing, damaged, or made for other weights."""


class AgentError(SkillmeshError):
    """An agent's home that is missing, damaged, or asked for something that it does not have.

    Examples
    --------
    >>> agent.learn("photos/dice", name="all dice", tags=["No Tag"])
    Traceback (most recent call last):
        ...
    skillmesh.errors.AgentError: a tag is 'No Tag', expected ...
    """


class WriteError(AgentError, OSError):
    """A file that cannot be written: no room, no permission, a folder or a device in its place."""

    def __init__(self, message: str, number: int | None = None, strerror: str | None = None) -> None:
        super().__init__(message)
        self.errno, self.strerror = number, strerror or message

    def __str__(self) -> str:
        return str(self.args[0])


class LedgerDamagedError(AgentError):
    """A ledger that is damaged or missing when something has to be written to it."""


class UnknownTaskError(AgentError):
    """A task name that is not in the bank.

    Examples
    --------
    >>> agent.forget("birds")
    Traceback (most recent call last):
        ...
    skillmesh.errors.UnknownTaskError: there is no task 'birds' here; known tasks: ...
    """


class AmbiguousTaskError(UnknownTaskError):
    """A task name that modules of several teachers in the bank share."""


class TaskExistsError(AgentError):
    """A task name that is already in the bank.

    Examples
    --------
    >>> agent.learn("photos/dice")
    Traceback (most recent call last):
        ...
    skillmesh.errors.TaskExistsError: the task 'dice' is learned already; ...
    """


class MeshError(SkillmeshError):
    """A mesh that cannot be joined: an address, a port or a certificate that does not work.

    Examples
    --------
    >>> with agent.share(network="machine"), agent.share():
    ...     pass
    Traceback (most recent call last):
        ...
    skillmesh.errors.MeshError: a node runs on ... already; ...
    """


class EncoderError(SkillmeshError):
    """An encoder of class names that is not installed, or whose weights are not available."""


class ModuleError(SkillmeshError):
    """A `.skill` file that must not be used. Each kind of fault is a subclass below.

    Examples
    --------
    >>> agent.import_file("basket.jpg")
    Traceback (most recent call last):
        ...
    skillmesh.errors.NotASkillFileError: ...
    """


class TruncatedError(ModuleError):
    """The file is shorter than its header states."""


class HeaderTooLargeError(ModuleError):
    """The header is larger than a module's header may be."""


class FileTooLargeError(ModuleError):
    """The file is larger than a module may be."""


class NotASkillFileError(ModuleError):
    """The file is not a module: a pickle, text, an image, or empty."""


class NotCanonicalError(ModuleError):
    """The content is readable but not encoded in the one byte form that is allowed for it."""


class FormatVersionError(ModuleError):
    """The file has a version of the format that this release does not read."""


class CardError(ModuleError):
    """The card lacks a field, or a field is out of bounds. If one field is at fault, `field` names it."""

    def __init__(self, message: str, field: str = "", found: str = "", expected: str = "") -> None:
        super().__init__(message)
        self.field, self.found, self.expected = field, found, expected


class OddNameError(CardError):
    """The name of a task, class or teacher looks like a key or a selector, or has invisible characters."""


class TensorError(ModuleError):
    """A tensor is missing, unexpected, or has another dtype or shape than the card requires."""


class NotFiniteError(ModuleError):
    """A tensor holds NaN or infinity."""


class SignatureError(ModuleError):
    """The signature was not made with the teacher's key."""


class BackboneMismatchError(ModuleError):
    """The module was made for a different backbone than this agent uses."""


class SettingsMismatchError(ModuleError):
    """The module has a different representation or kind of anchor than this agent uses."""


class NoticeError(ModuleError):
    """An announcement or withdrawal that is malformed, or not signed by the teacher that it names."""


class WithdrawnError(ModuleError):
    """The module's teacher has withdrawn it."""
