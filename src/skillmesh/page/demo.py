"""The demo on the page: tasks that are drawn by code and learned as lessons, and images to ask about."""

from __future__ import annotations

import re
import threading

from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.inputs import EncodedImage
from skillmesh.errors import SkillmeshError
from skillmesh.page.lessons import Lesson, Lessons
from skillmesh.page.problems import conflict, not_found

TASKS = ("flowers", "dice", "shapes")
"""The drawn tasks that need no font."""
IMAGES = {"train": 12, "val": 4, "test": 3}
"""Number of images per class in each split."""
SHOWN = 24
FOLDER = "demo"
_NAME = re.compile(r"[\w-]+")


class Demo:
    """The demo tasks of one agent; their test images are kept beside its lessons."""

    def __init__(self, lessons: Lessons) -> None:
        self._lessons = lessons
        self._folder = lessons.folder / FOLDER
        self._drawing = threading.Lock()

    @property
    def state(self) -> str:
        """How far the demo is: "none", "learning" or "ready"."""
        if not self._folder.exists():
            return "none"
        states = {lesson.record.state for lesson in self._lessons.all() if lesson.record.task in TASKS}
        return "learning" if states & {"waiting", "learning"} else "ready"

    def begin(self) -> list[Lesson]:
        """Draw the tasks and start a lesson of each."""
        with self._drawing:
            if self.state != "none":
                raise conflict("the demo was begun already; GET /api/v1/lessons says how far it is")
            write_demo_tasks(self._folder, names=TASKS, **IMAGES)
        begun = []
        for task in TASKS:
            lesson, _ = self._lessons.begin(task)
            try:
                for path in sorted(self._folder.glob(f"{task}/train/*/*")) + sorted(
                    self._folder.glob(f"{task}/val/*/*")
                ):
                    lesson.add_images(path.parent.name, [EncodedImage(path.name, path.read_bytes())])
                self._lessons.start(lesson, sharing="never", licence=None, note=None, tags=(), replace=True)
            except (SkillmeshError, OSError):
                self._lessons.delete(lesson)
                raise
            begun.append(lesson)
        return begun

    def images(self) -> list[dict[str, str]]:
        """Return some test images, each task's in turn."""
        paths = [sorted(self._folder.glob(f"{task}/test/*/*")) for task in TASKS]
        return [
            {
                "id": (
                    name := "-".join(path.relative_to(self._folder).with_suffix("").parts).replace(
                        "-test-", "-", 1
                    )
                ),
                "url": f"/api/v1/demo/images/{name}",
                "task": path.parts[-4],
                "label": path.parent.name,
            }
            for each in paths
            for path in each[:: max(1, len(each) * len(TASKS) // SHOWN)]
        ]

    def image(self, name: str) -> bytes:
        if _NAME.fullmatch(name):
            for path in self._folder.glob("*/test/*/*"):
                if "-".join((path.parts[-4], path.parts[-2], path.stem)) == name:
                    return path.read_bytes()
        raise not_found(f"the demo has no image {name[:80]!r}; GET /api/v1/demo/images lists them")
