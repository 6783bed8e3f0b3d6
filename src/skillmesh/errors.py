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

    What to do: read the message; it names the file, option or setting at fault.

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

    What to do: give a folder or zip with one folder of images for each class, or check the path and the files
    that the message names.

    Examples
    --------
    >>> agent.learn("nowhere")
    Traceback (most recent call last):
        ...
    skillmesh.errors.DataError: ...nowhere...
    """


class FolderOfTasksError(DataError):
    """A folder or zip that looks like several tasks, where one was expected.

    What to do: learn the tasks one by one, or all with `--each-folder`; if it is one task,
    `--one-task` (`one_task=True`).
    """

    def __init__(self, message: str, tasks: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tasks = tasks
        """Names of the folders and zips inside that look like tasks."""


class ArgumentError(SkillmeshError):
    """An argument of a function that has the wrong type or a value that is not allowed.

    What to do: pass a value of the type that the message names.

    Examples
    --------
    >>> agent.learn("photos/dice", replace="yes")
    Traceback (most recent call last):
        ...
    skillmesh.errors.ArgumentError: replace: found 'yes' (str); expected True or False
    """


class BackboneError(SkillmeshError):
    """A backbone that cannot be built, or weights that do not fit it.

    What to do: check the name of the backbone, its weights file, or install the package that the message
    names.

    Examples
    --------
    >>> Backbone.load("no such network")
    Traceback (most recent call last):
        ...
    skillmesh.errors.CalibrationError: no calibration is shipped for 'no such network'; ...
    """


class DeviceError(BackboneError):
    """A device that cannot be used: there is none of that name, or its driver or libraries are missing.

    What to do: name another device, cpu for example, or install what the message names.

    Examples
    --------
    >>> Backbone.load(device="tpu")
    Traceback (most recent call last):
        ...
    skillmesh.errors.DeviceError: the device 'tpu' cannot be used ...
    """


class CalibrationError(BackboneError):
    """A calibration that is missing, damaged, or made for other weights.

    What to do: make a calibration with `skillmesh calibrate`, or name the one that belongs to these weights.
    """


class AgentError(SkillmeshError):
    """An agent's home that is missing, damaged, or asked for something that it does not have.

    What to do: check the folder given by `--home` or `SKILLMESH_HOME`; `skillmesh repair` replaces a damaged
    ledger.

    Examples
    --------
    >>> agent.learn("photos/dice", name="all dice", tags=["No Tag"])
    Traceback (most recent call last):
        ...
    skillmesh.errors.AgentError: a tag is 'No Tag', expected ...
    """


class WriteError(AgentError, OSError):
    """A file that cannot be written: no room, no permission, a folder or a device in its place.

    What to do: make room, change the permissions, or choose another place.
    """

    def __init__(self, message: str, number: int | None = None, strerror: str | None = None) -> None:
        super().__init__(message)
        self.errno, self.strerror = number, strerror or message

    def __str__(self) -> str:
        return str(self.args[0])


class LedgerDamagedError(AgentError):
    """A ledger that is damaged or missing when something has to be written to it.

    What to do: run `skillmesh repair`, which keeps what can be read and says what is lost.
    """


class UnknownTaskError(AgentError):
    """A task name that is not in the bank.

    What to do: choose one of the names that `skillmesh tasks` lists.

    Examples
    --------
    >>> agent.forget("birds")
    Traceback (most recent call last):
        ...
    skillmesh.errors.UnknownTaskError: there is no task 'birds' here; known tasks: ...
    """


class AmbiguousTaskError(UnknownTaskError):
    """A task name that modules of several teachers in the bank share.

    What to do: name the teacher too: `TASK@TEACHER`.
    """


class TaskExistsError(AgentError):
    """A task name that is already in the bank.

    What to do: choose another name (`--name`), replace the task (`--replace`) or extend it (`--continue`).

    Examples
    --------
    >>> agent.learn("photos/dice")
    Traceback (most recent call last):
        ...
    skillmesh.errors.TaskExistsError: the task 'dice' is learned already; ...
    """


class MeshError(SkillmeshError):
    """A mesh that cannot be joined: an address, a port or a certificate that does not work.

    What to do: check the address, port and certificates; stop the other node of this home.

    Examples
    --------
    >>> with agent.share(network="machine"), agent.share():
    ...     pass
    Traceback (most recent call last):
        ...
    skillmesh.errors.MeshError: a node runs on ... already; ...
    """


class EncoderError(SkillmeshError):
    """An encoder of class names that is not installed, or whose weights are not available.

    What to do: install the package that the message names, or use the encoder `letters`.
    """


class ModuleError(SkillmeshError):
    """A `.skill` file that must not be used. Each kind of fault is a subclass below.

    What to do: ask the teacher for the file again; a file that still fails must not be used.

    Examples
    --------
    >>> agent.import_file("basket.jpg")
    Traceback (most recent call last):
        ...
    skillmesh.errors.NotASkillFileError: ...
    """


class TruncatedError(ModuleError):
    """The file is shorter than its header states.

    What to do: copy or download the file again.
    """


class HeaderTooLargeError(ModuleError):
    """The header is larger than a module's header may be.

    What to do: ask the teacher for the file again.
    """


class FileTooLargeError(ModuleError):
    """The file is larger than a module may be.

    What to do: ask the teacher for the file again, or for a task with fewer classes.
    """


class NotASkillFileError(ModuleError):
    """The file is not a module: a pickle, text, an image, or empty.

    What to do: name a file that `skillmesh export` wrote.
    """


class NotCanonicalError(ModuleError):
    """The content is readable but not encoded in the one byte form that is allowed for it.

    What to do: ask the teacher to export the task again with a current release.
    """


class FormatVersionError(ModuleError):
    """The file has a version of the format that this release does not read.

    What to do: update skillmesh, or ask the teacher for a file of this version.
    """


class CardError(ModuleError):
    """The card lacks a field, or a field is out of bounds. If one field is at fault, `field` names it.

    What to do: ask the teacher to export the task again.
    """

    def __init__(self, message: str, field: str = "", found: str = "", expected: str = "") -> None:
        super().__init__(message)
        self.field, self.found, self.expected = field, found, expected


class OddNameError(CardError):
    """The name of a task, class or teacher looks like a key or a selector, or has invisible characters.

    What to do: choose another name for the task, class or teacher.
    """


class TensorError(ModuleError):
    """A tensor is missing, unexpected, or has another dtype or shape than the card requires.

    What to do: ask the teacher to export the task again.
    """


class NotFiniteError(ModuleError):
    """A tensor holds NaN or infinity.

    What to do: ask the teacher to learn the task again.
    """


class SignatureError(ModuleError):
    """The signature was not made with the teacher's key.

    What to do: get the file from its teacher; it was changed or signed with another key.
    """


class BackboneMismatchError(ModuleError):
    """The module was made for a different backbone than this agent uses.

    What to do: use an agent with the same backbone, or ask for a module made with this one.
    """


class SettingsMismatchError(ModuleError):
    """The module has a different representation or kind of anchor than this agent uses.

    What to do: use an agent with the same settings, or ask for a module made with these.
    """


class NoticeError(ModuleError):
    """An announcement or withdrawal that is malformed, or not signed by the teacher that it names.

    What to do: nothing; the agent ignores such a notice.
    """


class WithdrawnError(ModuleError):
    """The module's teacher has withdrawn it.

    What to do: ask the teacher for a newer module.
    """
