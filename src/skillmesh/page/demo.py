"""The demo on the page: tasks that are drawn by code and learned as lessons, and images to ask about."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from pathlib import Path

from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.inputs import EncodedImage
from skillmesh.errors import SkillmeshError
from skillmesh.mesh.wire import thread
from skillmesh.page.lessons import Lessons
from skillmesh.page.problems import conflict, not_found

log = logging.getLogger(__name__)

TASKS = ("flowers", "dice", "shapes")
"""The drawn tasks that need no font."""
IMAGES = {"train": 12, "val": 4, "test": 3}
"""Number of images per class in each split."""
SHOWN = 24
FOLDER = "demo"
_NAME = re.compile(r"[\w-]+")


class Demo:
    """The demo tasks of one agent; their test images are kept beside its lessons."""

    def __init__(self, agent: Core, lessons: Lessons) -> None:
        self._agent, self._lessons = agent, lessons
        self._folder = lessons.folder / FOLDER
        self._guard = threading.Lock()
        self._drawing = False

    @property
    def state(self) -> str:
        """State of the demo: "none", "learning" or "ready"."""
        if self._drawing:
            return "learning"
        if not all((self._folder / task).exists() for task in TASKS):  # a node that stopped has drawn only some
            return "none"
        states = {lesson.record.state for lesson in self._lessons.all() if lesson.record.task in TASKS}
        return "learning" if states & {"waiting", "learning"} else "ready"

    def begin(self) -> None:
        """Draw the tasks and start a lesson of each, in a thread of its own: that takes seconds."""
        with self._guard:
            if self.state != "none":
                raise conflict("the demo was begun already; GET /api/v1/lessons shows its progress")
            self._drawing = True
        thread("demo", self._draw)

    def _draw(self) -> None:
        try:
            write_demo_tasks(self._folder, names=TASKS, **IMAGES)
            for task in TASKS:
                if self._agent.bank.held(task, self._agent.identity.public_key) is not None:
                    continue  # the user's own task of that name stays
                lesson, _ = self._lessons.begin(task)
                for split in ("train", "val"):
                    for path in sorted(self._folder.glob(f"{task}/{split}/*/*")):
                        lesson.add_images(path.parent.name, [EncodedImage(path.name, path.read_bytes())])
                self._lessons.start(lesson, sharing="never", licence=None, note=None, tags=(), replace=False)
        except (SkillmeshError, OSError) as error:
            log.warning("the demo could not be drawn: %s", error)
            shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            self._drawing = False

    def images(self) -> list[dict[str, str]]:
        """Return some test images, of each task in turn."""
        found = []
        for task in TASKS:
            paths = sorted(self._folder.glob(f"{task}/test/*/*"))
            for path in paths[:: max(1, len(paths) * len(TASKS) // SHOWN)]:
                name = _name(path)
                url = f"/api/v1/demo/images/{name}"
                found.append({"id": name, "url": url, "task": task, "label": path.parent.name})
        return found

    def image(self, name: str) -> bytes:
        if _NAME.fullmatch(name):
            for path in self._folder.glob("*/test/*/*"):
                if _name(path) == name:
                    return path.read_bytes()
        raise not_found(f"the demo has no image {name[:80]!r}; GET /api/v1/demo/images lists them")


def _name(path: Path) -> str:
    task, _, label, file = path.with_suffix("").parts[-4:]
    return f"{task}-{label}-{file}"
