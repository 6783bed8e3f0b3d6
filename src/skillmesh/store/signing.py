"""From a lesson to a module of one's own: card, version, signature, its place in the bank, the news of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillmesh.common.config import AgentConfig
from skillmesh.data.folder import TaskImages
from skillmesh.errors import AgentError, CardError, TaskExistsError
from skillmesh.learning.lesson import Lesson
from skillmesh.module import Card, Identity, Module, now
from skillmesh.module.notice import Slot, announce
from skillmesh.module.teachers import refuse_odd_names
from skillmesh.store import validation
from skillmesh.store.bank import Bank
from skillmesh.store.ledger import Ledger

CHOSEN = {
    "task": ("the task's name", "give it another with --name"),
    "teacher": ("the agent's name", "write another into the first line of key.pem in its home"),
    "classes": ("a class's name", "rename its folder"),
    "tags": ("a tag", "choose another --tag"),
    "licence": ("the licence", "choose another --licence"),
    "note": ("the note", "choose another --note"),
}
"""The card's fields that a user chooses: what they are called, and what to do about one that does not fit."""


class Signing:
    """What an agent's name and key stand for."""

    def __init__(self, home: Path, config: AgentConfig, identity: Identity, bank: Bank, ledger: Ledger) -> None:
        self._config, self._identity, self._bank, self._ledger = config, identity, bank, ledger
        self._validation = home / validation.FOLDER

    def own(self, task: str) -> Module | None:
        """The module of a task of one's own, if the bank holds it."""
        return self._bank.held(task, self._identity.public_key)

    def refuse_learned(self, task: str) -> None:
        if self.own(task) is not None:
            raise TaskExistsError(
                f"the task {task!r} is learned already; give another name with --name, or learn it again "
                "with --replace"
            )

    def refuse_composed(self, task: str) -> None:
        if self.own(task) is not None:
            raise TaskExistsError(
                f"this agent has a task {task!r} already; compose under another name, or put this one in its "
                "place with --replace"
            )

    def refuse_bad_names(self, folder: TaskImages, told: dict[str, Any]) -> None:
        """Make a card of what is known beforehand: a name that it refuses should not cost a forward pass."""
        counts = (1,) * len(folder.classes)
        facts = {
            "task": folder.name,
            "classes": folder.classes,
            "counts": counts,
            "anchors": (self._config.mapper,),
        }
        self.card(facts | told, dim=1, validation_images=0, temperature=1.0, version=1)

    def keep(
        self, lesson: Lesson, told: dict[str, Any], *, replace: bool = False, older: Module | None = None
    ) -> Module:
        """Sign a lesson, put it into the bank in place of the older version, and announce it.

        Other commands may have learned the same task while this lesson was studied. What stands in the bank then
        is replaced only by those who said so (`replace`), or who went on with exactly that version (`older`).
        """
        task = lesson.facts["task"]
        with self._bank.locked():
            standing = self.own(task)
            if older is not None and (standing is None or standing.id != older.id):
                raise TaskExistsError(
                    f"the task {task!r} was changed by another command meanwhile; nothing was stored; go on from "
                    "what it is now with the same command"
                )
            if older is None and standing is not None and not replace:
                raise TaskExistsError(
                    f"another command has learned the task {task!r} meanwhile, and that stays; give another name "
                    "with --name, or learn it again with --replace"
                )
            made, data = self.sign(lesson, told)
            try:
                module = self._bank.add(data)
            except BaseException:
                validation.remove(self._validation, made.id)
                raise
            # A file that cannot be used now may be again: with other settings, or put back from a copy.
            unusable = {damaged.path.stem for damaged in self._bank.damaged}
            validation.remove_others(self._validation, {held.id for held in self._bank} | unusable)
            self._tell_ledger(module, data)
        return module

    def _tell_ledger(self, module: Module, data: bytes) -> None:
        try:
            self._ledger.remember(Slot(module.card.teacher_key, module.card.task))
            notice = announce(module.card, module.id, data, self._identity)
            self._ledger.merge([notice], self._identity.public_key)
        except AgentError as error:
            raise AgentError(
                f"the task {module.card.task!r} is stored and can be used, but is not announced to others until a "
                f"node next runs here: {error}"
            ) from error

    def sign(self, lesson: Lesson, told: dict[str, Any]) -> tuple[Module, bytes]:
        """Make a module, and store what the agent keeps for itself of it, the validation images."""
        card = self.card(lesson.facts | told, version=self._next_version(lesson.facts["task"]))
        made, data = Module.create(card, lesson.tensors, self._identity)
        validation.save(self._validation, made.id, lesson.validation, lesson.validation_labels)
        return made, data

    def card(self, facts: dict[str, Any], **rest: Any) -> Card:
        """Make the card of a module of one's own; what the user chose badly is said in the user's words."""
        try:
            card = self._card(facts, **rest)
            refuse_odd_names(card)
            return card
        except CardError as error:
            if error.field not in CHOSEN:
                raise
            what, advice = CHOSEN[error.field]
            raise AgentError(f"{what} is {error.found}, expected {error.expected}; {advice}") from error

    def _card(self, facts: dict[str, Any], **rest: Any) -> Card:
        return Card(
            **facts,
            **rest,
            backbone=self._bank.backbone,
            backbone_name=self._config.backbone,
            representation=self._config.representation,
            compact=self._config.compact,
            created=now(),
            teacher=self._identity.name,
            teacher_key=self._identity.public_key,
        )

    def _next_version(self, task: str) -> int:
        """Versions count on even after the task was forgotten or withdrawn: elsewhere the older one is known."""
        older = self.own(task)
        slot = Slot(self._identity.public_key, task)
        return max(older.card.version if older else 0, self._ledger.latest_version(slot)) + 1


def told(licence: str | None, note: str | None, tags: Sequence[str]) -> dict[str, Any]:
    """The card's fields that the user gives."""
    return {"licence": licence, "note": note, "tags": tuple(sorted(set(tags))) or None}
