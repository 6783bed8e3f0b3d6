"""One root for everything that can go wrong in a way that the user can mend.

Every message says what was found, what was expected and what to do. Code that calls skillmesh as a library
catches `SkillmeshError`; the command turns it into one line and exit status 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

_read_by = "program"


@contextmanager
def messages_for_commands() -> Iterator[None]:
    """Have messages name the options of commands while this lasts; a program's own name arguments of Python."""
    global _read_by
    _read_by = "command"
    try:
        yield
    finally:
        _read_by = "program"


def option(python: str, command: str) -> str:
    """Return how the reader of a message writes an option: in Python, or on the command line.

    >>> option("replace=True", "--replace")
    'replace=True'
    """
    return command if _read_by == "command" else python


class SkillmeshError(ValueError):
    """Something that the user can mend: a wrong path, a damaged file, a setting that does not fit.

    Examples
    --------
    >>> try:
    ...     agent.predict("nowhere.jpg")
    ... except SkillmeshError as error:
    ...     print(type(error).__name__)
    DataError
    """

    lines: tuple[str, ...] = ()
    """The message's lines, where it has several; a line break in what a message quotes begins none."""

    @classmethod
    def of_lines(cls, *lines: str) -> Self:
        """Make an error that is shown on several lines."""
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
    """An argument of a function that is of another type, or has another value, than it can take.

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
    """A ledger that is damaged or gone, where something has to be written into it."""


class UnknownTaskError(AgentError):
    """A task name that the bank does not hold.

    Examples
    --------
    >>> agent.forget("birds")
    Traceback (most recent call last):
        ...
    skillmesh.errors.UnknownTaskError: there is no task 'birds' here; known tasks: ...
    """


class AmbiguousTaskError(UnknownTaskError):
    """A task name that several teachers' modules in the bank have."""


class TaskExistsError(AgentError):
    """A task name that the bank holds already.

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
    """An encoder of class names that is not installed, or whose weights cannot be had."""


class ModuleError(SkillmeshError):
    """A `.skill` file that must not be used. Each way to be wrong is a subclass below.

    Examples
    --------
    >>> agent.import_file("basket.jpg")
    Traceback (most recent call last):
        ...
    skillmesh.errors.NotASkillFileError: ...
    """


class TruncatedError(ModuleError):
    """The file ends before what its header promises."""


class HeaderTooLargeError(ModuleError):
    """The header is larger than any module needs."""


class FileTooLargeError(ModuleError):
    """The file is larger than any module may be."""


class NotASkillFileError(ModuleError):
    """The file is something else: a pickle, text, an image, nothing at all."""


class NotCanonicalError(ModuleError):
    """The content is readable but not in the one byte form that a module has."""


class FormatVersionError(ModuleError):
    """The file was written in a version of the format that this release does not read."""


class CardError(ModuleError):
    """The card lacks a field, or a field is out of bounds; where one field is to blame, it is told apart."""

    def __init__(self, message: str, field: str = "", found: str = "", expected: str = "") -> None:
        super().__init__(message)
        self.field, self.found, self.expected = field, found, expected


class OddNameError(CardError):
    """A task, a class or a teacher has a name that reads like a key or a selector, or hides characters."""


class TensorError(ModuleError):
    """A tensor is missing, unexpected, or of another dtype or shape than the card demands."""


class NotFiniteError(ModuleError):
    """A tensor holds NaN or infinity."""


class SignatureError(ModuleError):
    """The signature is not the teacher's."""


class BackboneMismatchError(ModuleError):
    """The module was made for another backbone than this agent's."""


class SettingsMismatchError(ModuleError):
    """The module has another representation or other anchors than this agent works with."""


class NoticeError(ModuleError):
    """An announcement or withdrawal that is malformed, or not signed by the teacher that it names."""


class WithdrawnError(ModuleError):
    """The module's teacher has withdrawn it."""
