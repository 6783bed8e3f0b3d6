"""Rare moments of a page: a full disk, two tabs, a stop at the wrong time, names in another Unicode form."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from pages import images_of, zipped

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.inputs import EncodedImage
from skillmesh.mesh.node import Node
from skillmesh.mesh.shelf import Shelf, distrust
from skillmesh.module import Identity
from skillmesh.module.notice import link
from skillmesh.page import lessons as module
from skillmesh.page.demo import IMAGES, TASKS, Demo
from skillmesh.page.lessons import Lesson, Lessons
from skillmesh.page.problems import Refused
from skillmesh.page.watch import Watch
from skillmesh.synergy.links import end_link


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core.open(tmp_path / "home")


@pytest.fixture
def lessons(core: Core) -> Iterator[Lessons]:
    found = Lessons(core, lambda _: None)
    yield found
    found.close()


@pytest.fixture
def images(tiny_tasks: Path) -> list[EncodedImage]:
    return [EncodedImage(path.name, path.read_bytes()) for path in images_of(tiny_tasks / "dice")["four"]]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which no lesson.json can be written."""

    def fill() -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(module, "write_whole", refuse)

    return fill


def filled(lessons: Lessons, images: list[EncodedImage]) -> Lesson:
    lesson, _ = lessons.begin("dice", ["four", "five"])
    for name in ("four", "five"):
        assert len(lesson.add_images(name, images)[0]) == len(images)
    return lesson


class TestOnAFullDisk:
    def test_a_lesson_is_as_it_was(self, lessons: Lessons, images: list[EncodedImage], full_disk: Any):
        lesson = filled(lessons, images)
        full_disk()
        before = lesson.as_dict()
        for change in (
            lambda: lesson.add_class("six"),
            lambda: lesson.rename_class("five", "six"),
            lambda: lessons.start(lesson, sharing="later", licence=None, note=None, tags=(), replace=False),
        ):
            with pytest.raises(OSError, match="No space"):
                change()
            assert lesson.as_dict() == before
        assert lessons._jobs.empty()

    def test_images_and_lessons_can_be_deleted(self, lessons: Lessons, images: list[EncodedImage], full_disk: Any):
        lesson = filled(lessons, images)
        full_disk()
        lesson.remove_image(lesson.files_of("four")[0])
        assert lesson.counts()["four"] == len(images) - 1
        lessons.delete(lesson)
        assert not lesson.folder.exists()
        with pytest.raises(Refused, match="no lesson"):
            lessons.find(lesson.id)

    def test_no_half_lesson_is_left(self, lessons: Lessons, full_disk: Any):
        full_disk()
        with pytest.raises(OSError, match="No space"):
            lessons.begin("dice")
        assert list(lessons.folder.iterdir()) == []


class TestLessons:
    def test_an_archive_is_one_change(self, core: Core, tiny_tasks: Path, tmp_path: Path):
        told: list[Any] = []
        lessons = Lessons(core, told.append)
        lesson, _ = lessons.begin("dice")
        files = {
            f"{name}/{index}.jpg": path.read_bytes()
            for name, paths in images_of(tiny_tasks / "dice").items()
            for index, path in enumerate(paths)
        }
        told.clear()
        added, refused = lesson.add_archive(EncodedImage("dice.zip", zipped(files)))  # type: ignore[arg-type]
        assert (len(added), refused) == (len(files), [])
        assert len(told) == len(lesson.counts()) + 1
        lessons.close()

    def test_a_name_in_another_unicode_form_is_the_same(self, lessons: Lessons, images: list[EncodedImage]):
        lesson, _ = lessons.begin("Cafe\u0301", ["the\u0301"])
        lesson.add_images("th\u00e9", images[:1])
        lesson.add_images("the\u0301", images[1:2])
        assert (lesson.record.task, lesson.counts()) == ("Caf\u00e9", {"th\u00e9": 2})

    def test_a_removed_image_gives_its_name_to_no_other(
        self, core: Core, lessons: Lessons, images: list[EncodedImage]
    ):
        lesson = filled(lessons, images)
        removed = lesson.files_of("five")[-1]
        lesson.remove_image(removed)
        again = Lessons(core, lambda _: None)
        added, _ = again.find(lesson.id).add_images("five", images[:1])
        assert added != [removed]
        again.close()

    def test_an_extended_private_task_is_said_to_be_private(self, core: Core, lessons: Lessons, tiny_tasks: Path):
        core.learn(tiny_tasks / "dice", sharing="never")
        lesson, _ = lessons.begin("dice", extends=True)
        assert lesson.record.sharing == "never"

    def test_damage_of_one_leaves_the_others(self, core: Core, lessons: Lessons, images: list[EncodedImage]):
        lesson = filled(lessons, images)
        for name, content in (("a", b""), ("b", b"\xff"), ("c", b'{"task": 3}')):
            shutil.copytree(lesson.folder, lessons.folder / name)
            (lessons.folder / name / "lesson.json").write_bytes(content)
        again = Lessons(core, lambda _: None)
        assert [each.id for each in again.all()] == [lesson.id]
        again.close()


class TestDemo:
    def test_replaces_no_task_of_the_user(self, core: Core, lessons: Lessons, tiny_tasks: Path):
        own, _ = core.learn(tiny_tasks / "dice")
        Demo(core, lessons)._draw()
        assert sorted(each.record.task for each in lessons.all()) == sorted({*TASKS} - {"dice"})
        assert not any(each.record.replace for each in lessons.all())
        assert core.bank.held("dice", core.identity.public_key) == own

    def test_can_be_begun_again_if_only_some_of_it_was_drawn(self, core: Core, lessons: Lessons):
        write_demo_tasks(lessons.folder / "demo", names=TASKS[:1], **IMAGES)
        assert Demo(core, lessons).state == "none"


def test_a_module_released_at_once_is_not_put_away_again(core: Core, skill_files: dict[str, Path]):
    task = core.import_file(skill_files["dice"])
    key, shelf = task.card.teacher_key, Shelf(core.home, core.ledger)
    core.ledger.trust(key)
    node = Node(core, MeshSettings.of({"network": "machine", "trust": "listed"}))
    node._trusted = core.ledger.view().trusted
    distrust(core, shelf, key)
    shelf.release(shelf.held()[0], core)
    node._reconsider_trust(core.ledger.view())  # which sees only now that the teacher is not trusted any more
    assert core.bank.get(task.id) is not None
    assert shelf.held() == []


def test_the_first_task_changes_the_agent_too(core: Core, skill_files: dict[str, Path]):
    watch = Watch(core, Node(core, MeshSettings.of({"network": "machine"})))
    before = watch._looked()
    core.import_file(skill_files["dice"])
    after = watch._looked()
    assert {topic for topic in after if after[topic] != before[topic]} >= {"agent", "tasks"}
    assert watch._looked() == after
    watch.close()


def test_the_link_of_the_id_is_ended_and_not_one_of_the_same_name(
    core: Core, tiny_tasks: Path, skill_files: dict[str, Path]
):
    core.learn(tiny_tasks / "dice")
    theirs = core.import_file(skill_files["dice"])
    mine = core.identity.public_key
    own = core.merge([f"dice@{mine}", f"dice@{theirs.card.teacher_key}"], "all dice")
    other = Identity.create("eve")
    foreign = link("all dice", 1, {part.id: part for part in core.merged()[0].parts}, other)
    core.ledger.trust(other.public_key)
    core.ledger.merge([foreign], other.public_key)
    end_link(core, foreign)
    links = core.ledger.view()
    assert foreign.slot in links.forgotten
    assert links.links[own.slot] == own
    assert end_link(core, own).withdrawn
    assert core.merged() == []
