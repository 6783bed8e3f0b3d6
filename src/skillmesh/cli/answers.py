"""Getting answers for `ask`, from a running node or from the agent itself, and printing them one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from rich.cells import cell_len
from rich.text import Text

from skillmesh.answering.answer import Answer, Guess
from skillmesh.cli import open_agent, outlet, show
from skillmesh.common.text import safe, with_letters
from skillmesh.data.inputs import WINDOW
from skillmesh.errors import AgentError, SkillmeshError
from skillmesh.mesh.calling import NotRunningError, call
from skillmesh.store.home import home_folder

if TYPE_CHECKING:
    from skillmesh.data.inputs import AnyImage
    from skillmesh.numerics.process import Progress

SHOWN = 0.05
"""Confidence above which another label is shown beside the answer."""
MOST_WRITTEN = 128 * 2**20
"""Largest total size, in bytes, of the files written for a node at a time; the last image may exceed it."""
LEFT_FOR_OTHERS = 12
"""Number of terminal columns reserved for other labels; they get more where the other columns are narrow."""


class Writer(Protocol):
    """Writes answers one by one."""

    def lay_out(self, longest: Mapping[str, int]) -> None:
        """Set the greatest lengths of labels, tasks and teachers; without teachers there is only one."""
        ...

    def add(self, answer: Answer) -> None: ...

    def end(self, error: SkillmeshError | None) -> None: ...


class Asking:
    """Lets a node running on this home answer, as its backbone is already loaded; without one, answers itself."""

    def __init__(self, home: Path | None, device: str | None, writer: Writer) -> None:
        self._home, self._device, self._writer = home_folder(home), device, writer

    def answers(self, images: list[AnyImage], progress: Progress) -> Iterator[Answer]:
        """Yield an answer for every image; if the node stops midway, this process answers the rest."""
        done = 0
        if self._device is None and images:
            with contextlib.suppress(NotRunningError), TemporaryDirectory(prefix="skillmesh-ask-") as folder:
                call(self._home, "status")  # fails if no node runs, before any image is unpacked for it
                for window in _windows(images, Path(folder)):
                    yield from self._by_node(window)
                    done += len(window)
        if done < len(images):
            yield from self._by_agent(images[done:], progress)

    def _by_agent(self, images: list[AnyImage], progress: Progress) -> Iterator[Answer]:
        from skillmesh.answering.answering import longest

        agent = open_agent(self._home, device=self._device)
        self._writer.lay_out(longest(agent.answering_tasks(), agent.teachers))
        yield from agent.answer_each(images, progress, len(images))

    def _by_node(self, images: list[tuple[str, str | Answer]]) -> Iterator[Answer]:
        paths = [path for _, path in images if isinstance(path, str)]
        reply = call(self._home, "ask", timeout=None, images=paths)
        if "longest" not in reply:
            raise AgentError(f"the node on {self._home} runs another release of skillmesh; stop and restart it")
        self._writer.lay_out(reply["longest"])
        answers = iter(reply["answers"])
        for name, path in images:
            yield Answer.from_dict(next(answers) | {"image": name}) if isinstance(path, str) else path


def _windows(images: list[AnyImage], folder: Path) -> Iterator[list[tuple[str, str | Answer]]]:
    """Yield a few images at a time, by name and path; files written for the node are removed afterwards.

    A window ends early if its files have become large: images in a small archive may fill a disk when unpacked.
    """
    rest = iter(images)
    while True:
        window: list[tuple[str, str | Answer]] = []
        written: list[Path] = []
        for image in islice(rest, WINDOW):
            target = folder / str(len(window))
            window.append((image.name, _as_file(image, target)))
            if target.exists():
                written.append(target)
            if sum(path.stat().st_size for path in written) > MOST_WRITTEN:
                break
        if not window:
            return
        yield window
        for path in written:
            path.unlink()


def _as_file(image: AnyImage, target: Path) -> str | Answer:
    """Return a path where a node can read the image (`target` if it is not a file), or a failed answer."""
    from skillmesh.data.images import UnreadableImageError
    from skillmesh.data.inputs import EncodedImage

    if isinstance(image, EncodedImage) and image.data is None:
        return str(Path(image.name).resolve())
    try:
        target.write_bytes(image.content())
    except (UnreadableImageError, OSError) as error:
        return Answer.failed(image.name, str(error))
    return str(target)


@dataclass
class AnswerLines:
    """Answers as text, one line each; tab-separated if stdout is not a terminal."""

    names: list[str]
    """Names of all images, as typed by the user."""
    _widths: dict[str, int] = field(default_factory=dict)

    def lay_out(self, longest: Mapping[str, int]) -> None:
        """Fit the columns into the terminal's width and leave some room for other labels."""
        wanted = {"image": max(map(cell_len, self.names), default=0), **longest}
        wanted["label"] = max(wanted["label"], len("not sure"))
        least = {"image": 14, "label": 10, "task": 8, "teacher": 12}
        room = show.console.width - len(" 100 %") - LEFT_FOR_OTHERS
        while sum(wanted.values()) + 2 * len(wanted) > room:
            widest = max(wanted, key=lambda name: wanted[name] - least[name])
            if wanted[widest] <= least[widest]:
                break
            wanted[widest] -= 1
        self._widths = {name: width for name, width in wanted.items() if width}

    def add(self, answer: Answer) -> None:
        if answer.error is not None:
            show.warn(f"skipped: {answer.image}: {answer.error}")
        elif not show.console.is_terminal:
            given = (answer.label, _task(answer.best), f"{answer.confidence:.4f}", answer.teacher)
            cells = (answer.image, *(given if (words := not_given(answer)) is None else (words, "", "", "")))
            outlet.raw("\t".join(safe(cell or "") for cell in cells) + "\n")
        else:
            show.console.print(self._line(answer), overflow="ellipsis", no_wrap=True)

    def _line(self, answer: Answer) -> Text:
        words = not_given(answer)
        label = answer.label if words is None else words
        cells = {"image": answer.image, "label": label or "", "teacher": answer.teacher or "–"}
        cells["task"] = _task(answer.best) if words is None else "–"
        line = Text()
        for name, width in self._widths.items():
            text = show.shorten(cells[name], width)
            line.append(text + " " * (width + 2 - cell_len(text)), style="bold" if name == "label" else "")
        if words is not None:
            return line.append(f"{'–':>5}  nearest: {answer.best.label} ({_task(answer.best)})", style="dim")
        others = [f"{g.label} {_percent(g.confidence)}" for g in answer.alternatives if g.confidence > SHOWN]
        line.append(f"{_percent(answer.confidence):>5}")
        return line.append(f"  or {', '.join(others)}", style="dim") if others else line

    def end(self, error: SkillmeshError | None) -> None:
        """Do nothing: every answer is already printed."""


class JsonAnswers:
    """One JSON object, written answer by answer; it is valid JSON even if an error stops the work midway."""

    def __init__(self) -> None:
        self._count = 0
        self._unreadable: list[dict[str, Any]] = []

    def lay_out(self, longest: Mapping[str, int]) -> None:
        """Do nothing: JSON needs no column widths."""

    def add(self, answer: Answer) -> None:
        if answer.error is not None:
            self._unreadable.append({"file": answer.image, "reason": answer.error})
            return
        text = show.json_text(answer.as_dict())
        outlet.raw(('{"answers": [\n' if not self._count else ",\n") + text)
        self._count += 1

    def end(self, error: SkillmeshError | None) -> None:
        rest = {"unreadable": self._unreadable} | ({} if error is None else {"error": show.with_home(str(error))})
        text = show.json_text(rest)
        outlet.raw(("\n], " if self._count else '{"answers": [], ') + text.removeprefix("{") + "\n")


def not_given(answer: Answer) -> str | None:
    """Return what is said in place of a label: "unknown" or "not sure"; None if there is a label."""
    return "unknown" if answer.unknown else "not sure" if answer.unsure else None


def _task(guess: Guess) -> str:
    """Return the task's name, with a note on the letters that make it look like another name."""
    return with_letters(guess.task, guess.odd_letters)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "<1 %"
