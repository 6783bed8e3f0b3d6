"""The command `renew`, which moves an agent to the calibration that this release ships."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.common.choices import Adaptation
    from skillmesh.core import Core
    from skillmesh.data.folder import TaskImages
    from skillmesh.module import Module
    from skillmesh.module.card import Card


@app.command()
def renew(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of all tasks that this agent has taught, or of folders of them."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop", metavar="TASK", show_default=False, help="Do not learn this task again; repeatable."
        ),
    ] = None,
    home: options.Home = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Move an agent to the calibration of this release. Its own tasks are learned again from their folders.

    Descriptors that are in the cache are not computed again. The agent keeps its key, settings, ledger and trusted
    teachers. It fetches other teachers' tasks again once these have moved too. The home as it was is kept beside
    the new one.
    """
    from skillmesh.cli import show
    from skillmesh.mesh.repair import alone

    agent = open_agent(home or context.obj, make=False)
    _refuse_current(agent)
    agent.ledger.refuse_unchangeable()
    places = _Places.beside(agent.home)
    dropped = set(drop or ())
    with alone(agent.home, "renew"):
        before = _state(agent)  # first, so that no change goes unnoticed
        own = {module.card.task: module.card for module in agent.bank if _is_own(module, agent)}
        tasks = _to_learn(agent, own, folders or [], dropped)
        others = sorted(module.card.task for module in agent.bank if not _is_own(module, agent))
        links = _own_links(agent)
        with _fresh_home(agent, places):
            learned = _learned_again(agent, places.fresh, tasks, device)
            with agent.bank.locked():
                if _state(agent) != before:
                    raise AgentError(
                        f"{agent.home} was changed by another command meanwhile, and stays as it is now; run the "
                        "same command again"
                    )
                agent.close()  # SQLite removes its files beside the ledger by their path
                left = places.swap()
    for path in left:
        show.warn(f"not the agent's, and could not be moved back: {path}")
    if json:
        facts = {"learned": [module.card.task for module in learned], "left_behind": sorted(dropped)}
        show.print_json(facts | {"to_fetch": others, "to_merge": links, "before": str(places.before)})
        return
    for module in learned:
        outlet.line(_line(own[module.card.task], module))
    if dropped:
        outlet.line(f"left behind: {', '.join(sorted(dropped))}")
    if others:
        outlet.line(f"fetched again once their teachers have moved too: {', '.join(others)}")
    if links:
        outlet.line(f"to be merged again once all parts are here: {', '.join(links)}")
    outlet.line(f"the home as it was is {places.before}")


def _line(old: Card, new: Module) -> str:
    from skillmesh.cli import show

    classes = f"{len(new.card.classes)} classes"
    if len(old.classes) != len(new.card.classes):
        classes += f" ({len(old.classes)} before)"
    return (
        f"learned {old.task!r} again: version {new.card.version}, {classes}, validation accuracy "
        f"{show.percent(new.card.validation_accuracy)} ({show.percent(old.validation_accuracy)} before)"
    )


# Whether the agent can be moved, and what has to be learned again.


def _refuse_current(agent: Core) -> None:
    """Raise an error if there is no other calibration to move to."""
    from skillmesh.backbone.backbone import backbone_fingerprint, load_calibration

    shipped = load_calibration(agent.config.backbone, None, agent.config.weights)
    if backbone_fingerprint(shipped) == agent.bank.backbone:
        raise AgentError("this agent uses the calibration of this release already; nothing is to be done")


def _is_own(module: Module, agent: Core) -> bool:
    return module.card.teacher_key == agent.identity.public_key


def _own_links(agent: Core) -> list[str]:
    """Return the names of tasks that this agent has merged: the links name modules of the earlier calibration."""
    links = agent.ledger.view().links
    own = agent.identity.public_key
    return sorted(link.task for slot, link in links.items() if slot.teacher_key == own and not link.withdrawn)


def _state(agent: Core) -> Any:
    """Return what other commands can change in a home while its tasks are learned again."""
    agent.bank.refresh()
    files = {file: file.read_bytes() for file in _kept(agent.home)}
    return sorted(module.id for module in agent.bank), agent.ledger.view(), files


def _kept(home: Path) -> list[Path]:
    """Return the files that the new home gets as they are."""
    from skillmesh.common.config import MESH_FILE
    from skillmesh.store.home import KEY_FILE, TOKENS
    from skillmesh.store.sharing import FOLDER as UNSHARED

    folders = (file for folder in ("tls", UNSHARED) for file in (home / folder).rglob("*"))
    return [file for file in (home / KEY_FILE, home / MESH_FILE, home / TOKENS, *folders) if file.is_file()]


@dataclass(frozen=True)
class _Task:
    """A task to learn again: its card, and its images."""

    card: Card
    images: TaskImages

    @property
    def adaptation(self) -> Adaptation:
        """The kind of adaptation that the task has, to be tried again with its usual options."""
        from skillmesh.common.choices import NO_ADAPTATION, Adaptation

        if self.card.toes is not None:
            return Adaptation("auto", "head2toe")
        if self.card.biases is not None:
            return Adaptation("auto", "biases")
        return NO_ADAPTATION if self.card.pattern is None else Adaptation("auto", "reprogramming")


def _to_learn(agent: Core, own: dict[str, Card], folders: Sequence[Path], dropped: set[str]) -> list[_Task]:
    """Return the own tasks in the order in which they were learned; raise an error if images are missing."""
    from skillmesh.data.folder import find_tasks, open_task, task_name

    if strange := sorted(dropped - own.keys()):
        raise AgentError(
            f"--drop names {', '.join(map(repr, strange))}; expected tasks that this agent has taught: "
            f"{', '.join(sorted(own)) or 'none'}"
        )
    if agent.bank.damaged:
        raise AgentError(
            f"{', '.join(damaged.path.name for damaged in agent.bank.damaged)} in {agent.bank.folder} cannot be "
            "read, so tasks would be lost; put the files back from a copy, or delete them, and run renew again"
        )
    cards = sorted((card for task, card in own.items() if task not in dropped), key=lambda c: (c.created, c.task))
    paths = {task_name(path): path for path in find_tasks(folders)} if folders else {}
    _refuse_missing([card for card in cards if card.task not in paths])
    tasks = []
    for card in cards:
        path = paths[card.task]
        task = _Task(card, open_task(path, seed=agent.config.seed, one_task=True))
        if lost := sorted(set(card.classes) - set(task.images.classes)):
            raise AgentError(
                f"{path} has no images of {', '.join(map(repr, lost))}, expected all {len(card.classes)} classes "
                f"of the task {card.task!r}; put those of a task that was continued into one folder, or leave the "
                "task behind with --drop"
            )
        agent.require_packages(task.adaptation)
        tasks.append(task)
    return tasks


def _refuse_missing(cards: Sequence[Card]) -> None:
    if not cards:
        return
    message = (
        f"no folder holds the images of {', '.join(sorted(repr(card.task) for card in cards))}, which this agent "
        "has taught; name their folders too (a folder, or a link to it, has its task's name), or leave these "
        "tasks behind with --drop"
    )
    if composed := sorted(repr(card.task) for card in cards if card.composed is not None):
        message += f"; {', '.join(composed)} can be composed again afterwards"
    raise AgentError(message)


# The folders: the home, the new one while it is made, and the home as it was.


@dataclass(frozen=True)
class _Places:
    home: Path
    fresh: Path
    before: Path

    @classmethod
    def beside(cls, home: Path) -> _Places:
        """Return the folders; raise an error if they cannot be used."""
        home = home.resolve()  # of a link, the folder is moved and the link stays
        places = cls(home, home.with_name(f"{home.name}-renewed"), home.with_name(f"{home.name}-before"))
        if os.path.lexists(places.before):
            raise AgentError(f"{places.before} is in the way: the home as it was goes there; move it elsewhere")
        if os.path.lexists(places.fresh):
            raise AgentError(
                f"{places.fresh} is in the way; remove it if a `skillmesh renew` that was stopped has left it"
            )
        if home.is_mount() or not os.access(home.parent, os.W_OK):
            reason = "it is the root of a disk" if home.is_mount() else f"{home.parent} is not writable"
            raise AgentError(
                f"{home} cannot be renamed: {reason}; copy the home to another place, renew the copy, and put its "
                "files in place of these"
            )
        return places

    def swap(self) -> list[Path]:
        """Put the new home in place of the home; return files that are not the agent's and could not be moved."""
        from skillmesh.common.files import sync_folder
        from skillmesh.store.home import LESSONS, is_of_agent

        self.fresh.chmod(stat.S_IMODE(self.home.stat().st_mode))
        self.home.rename(self.before)
        try:
            self.fresh.rename(self.home)
        except BaseException:
            self.before.rename(self.home)
            raise
        left = []
        images = self.before / LESSONS  # moved, not copied, as the user's own files are
        for path in [path for path in self.before.iterdir() if path == images or not is_of_agent(path)]:
            try:
                path.rename(self.home / path.name)
            except OSError:
                left.append(path)
        sync_folder(self.home.parent)
        return left


@contextmanager
def _fresh_home(agent: Core, places: _Places) -> Iterator[None]:
    """Make a home with the agent's key, ledger and settings, without the earlier calibration and its modules.

    It is removed if anything fails: then nothing has changed.
    """
    from skillmesh.backbone.spec import calibration_in
    from skillmesh.common.files import PRIVATE, make_folder, write_whole
    from skillmesh.store.home import CALIBRATION_FILE
    from skillmesh.store.ledger import FILE as LEDGER_FILE

    try:
        make_folder(places.fresh)
        for file in _kept(places.home):
            target = places.fresh / file.relative_to(places.home)
            make_folder(target.parent)
            write_whole(target, file.read_bytes(), mode=PRIVATE)
        write_whole(places.fresh / LEDGER_FILE, agent.ledger.as_bytes(), mode=PRIVATE)
        calibration = calibration_in(agent.config.weights)
        if calibration is not None:  # of an exported network; copied, as by `init`
            write_whole(places.fresh / CALIBRATION_FILE, calibration.read_bytes(), mode=PRIVATE)
        kept = None if calibration is None else Path(CALIBRATION_FILE)
        agent.config.model_copy(update={"calibration": kept}).save(places.fresh)
        yield
    except BaseException:
        shutil.rmtree(places.fresh, ignore_errors=True)
        raise


def _learned_again(agent: Core, fresh: Path, tasks: Sequence[_Task], device: str | None) -> list[Module]:
    """Learn the tasks in the new home, with the options that their cards tell."""
    from skillmesh.cli import show
    from skillmesh.core import Core

    renewed = Core(fresh, device=device)
    try:
        with show.progress_bar() as bar:
            return [
                renewed.learn(
                    task.images,
                    licence=task.card.licence,
                    note=task.card.note,
                    tags=task.card.tags or (),
                    adaptation=task.adaptation,
                    views=task.card.views,
                    progress=bar,
                )[0]
                for task in tasks
            ]
    finally:
        renewed.close()
