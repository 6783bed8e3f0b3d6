"""Running a node: until it is stopped, until it has caught up with its peers, or beside a program."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from skillmesh.answering.answering import longest
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError, SkillmeshError
from skillmesh.mesh.control import Control
from skillmesh.mesh.node import Node
from skillmesh.mesh.status import node_status, peer_list
from skillmesh.mesh.wire import thread
from skillmesh.numerics.process import answer_several_at_once, give_back_freed_memory, hand_back

log = logging.getLogger(__name__)

HAND_BACK = 20.0
"""Seconds between returns of freed memory to the system. With a loaded backbone it would be kept, and memory of
replaced mappers between small live objects would never be returned. Hostile peers caused 200 MB of it in 15 s."""
IMAGES_AT_ONCE = 4_096


class Lessons:
    """Tasks for a node to learn while it shares."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.to_learn = [str(folder) for folder in folders]
        self.failed: list[dict[str, str]] = []

    def learn_all(self, agent: Core) -> None:
        """Learn the tasks one after the other; a failure is logged and does not stop the others."""
        while self.to_learn:
            folder = self.to_learn[0]
            try:
                module, _ = agent.learn(folder)
                log.info("learned %r", module.card.task)
            except SkillmeshError as error:
                log.error("could not learn %s: %s", folder, error)
                self.failed.append({"file": folder, "reason": str(error)})
            except Exception as error:
                log.exception("could not learn %s", folder)
                self.failed.append({"file": folder, "reason": f"unexpected {type(error).__name__}: {error}"})
            self.to_learn.pop(0)


def serve(
    agent: Core,
    settings: MeshSettings,
    learn: Sequence[Path] = (),
    ready: Callable[[Node], AbstractContextManager[object] | None] = lambda _: None,
) -> None:
    """Run a node until SIGTERM or SIGINT; meanwhile, learn the tasks in `learn` one after the other.

    What `ready` returns is entered, and left before the node ends.
    """
    give_back_freed_memory()
    answer_several_at_once()
    stop = threading.Event()
    lessons = Lessons(learn)
    with (
        _stopped_by_signals(stop),
        _controlled(Node(agent, settings), stop, lessons) as node,
        ready(node) or contextlib.nullcontext(),
    ):
        thread("learn", partial(lessons.learn_all, agent))
        handed_back = time.monotonic()
        while not stop.wait(1.0):  # a signal delivered to a zenoh thread does not end a wait
            if time.monotonic() - handed_back > HAND_BACK:
                hand_back()
                handed_back = time.monotonic()


def catch_up(agent: Core, settings: MeshSettings, seconds: float) -> dict[str, Any]:
    """Join the mesh, exchange everything with the peers found, leave; return the node's status at the end."""
    stop = threading.Event()
    with _stopped_by_signals(stop), _controlled(Node(agent, settings), stop, Lessons(())) as node:
        node.sync(seconds, stop)
        return node_status(node)


@contextlib.contextmanager
def sharing(agent: Core, **settings: Any) -> Iterator[Node]:
    """Run a node beside the calling program; settings that are not given come from the home."""
    stop = threading.Event()
    node = Node(agent, MeshSettings.load(agent.home).with_(**settings))
    with _controlled(node, stop, Lessons(()), may_be_stopped=False):
        try:
            yield node
        finally:
            stop.set()  # a `sync` command may still be waiting


@contextlib.contextmanager
def _controlled(
    node: Node, stop: threading.Event, lessons: Lessons, may_be_stopped: bool = True
) -> Iterator[Node]:
    """Run a node that answers commands on its home; without `may_be_stopped` it refuses the command `stop`."""
    with node.running():
        verbs = _verbs(node, stop, lessons)
        if not may_be_stopped:
            verbs["stop"] = _refuse_to_stop
        control = Control(node.agent.home, verbs)
        try:
            yield node
        finally:
            control.close()


def _verbs(node: Node, stop: threading.Event, lessons: Lessons) -> dict[str, Callable[..., Any]]:
    def status() -> dict[str, Any]:
        return node_status(node) | {"to_learn": lessons.to_learn, "not_learned": lessons.failed}

    def ask(images: list[str]) -> dict[str, Any]:
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            raise AgentError("the images to ask about are not a list of paths; is the command of another version?")
        if len(images) > IMAGES_AT_ONCE:
            raise AgentError(f"{len(images):,} images at once, the limit is {IMAGES_AT_ONCE:,}; ask about fewer")
        answers = [answer.as_dict() for answer in node.agent.answer_each(images)]
        return {"answers": answers, "longest": longest(node.agent.in_use(), node.agent.teachers)}

    def sync(seconds: float) -> dict[str, Any]:
        if not isinstance(seconds, int | float):
            raise AgentError("the seconds to sync for are not a number; is the command of another version?")
        node.sync(seconds, stop)
        return node_status(node)

    return {
        "status": status,
        "peers": lambda: peer_list(node),
        "ask": ask,
        "sync": sync,
        "stop": stop.set,
    }


def _refuse_to_stop() -> None:
    raise AgentError("this node runs inside a program; end the program, or its `with agent.share()` block")


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; outside the main thread, where Python gets no signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
