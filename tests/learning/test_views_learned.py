"""Learning from views: a share of the images replaced, or views added; what the card says; what is refused."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from skillmesh import Agent
from skillmesh.common.choices import USUAL_VIEWS, Adaptation
from skillmesh.core import Core
from skillmesh.data.folder import Split, TaskImages, open_task
from skillmesh.data.images import UnreadableImageError, open_rgb
from skillmesh.data.inputs import AnyImage, as_image
from skillmesh.data.items import RenamedImage
from skillmesh.data.views import LEARNED, ViewedImage
from skillmesh.errors import AgentError, ArgumentError
from skillmesh.learning.lesson import read_images, with_views
from skillmesh.module.card import Card
from skillmesh.numerics.arrays import counted
from skillmesh.store.home import create_home


@pytest.fixture
def task(tiny_tasks: Path) -> TaskImages:
    return open_task(tiny_tasks / "dice")


@pytest.fixture
def agent(tmp_path: Path) -> Core:
    return Core.open(tmp_path / "home", cache_folder=tmp_path / "cache")


def test_a_share_of_each_class_is_described_as_views(task: TaskImages, agent: Core):
    backbone = agent.backbone
    plain, viewed = (read_images(task, backbone, None, share).parts for share in (0, 0.5))
    changed = (plain[0].raw != viewed[0].raw).any(axis=1)
    counts = np.bincount(task.splits["train"].labels)
    assert np.bincount(viewed[0].labels[changed], minlength=len(counts)).tolist() == [round(n / 2) for n in counts]
    assert np.array_equal(plain[1].raw, viewed[1].raw)  # validation images are what they are
    assert plain[0].keys == viewed[0].keys
    assert [image.name for image in plain[0].images] == [image.name for image in viewed[0].images]


def doubled(task: TaskImages, kind: str | None) -> TaskImages:
    """Return the task with its training images among the validation images too: as they are, or saved again."""
    train, val = task.splits["train"], task.splits["val"]
    again = [
        RenamedImage(f"again {file.name}", file if kind is None else saved(file.content(), kind))
        for file in train.files
    ]
    labels = np.concatenate([val.labels, train.labels])
    return replace(task, splits={"train": train, "val": Split((*val.files, *again), labels)})


def saved(data: bytes, kind: str) -> AnyImage:
    file = io.BytesIO()
    open_rgb(data).save(file, kind)
    return as_image(file.getvalue())


def test_equal_files_are_found_among_images_that_are_learned_from_views(task: TaskImages, agent: Core):
    read = read_images(doubled(task, None), agent.backbone, None, share=0.9)
    assert [len(part) for part in read.parts] == [len(task.splits["train"]), len(task.splits["val"])]


def test_most_copies_that_were_saved_again_are_found_among_images_that_are_learned_from_views(
    task: TaskImages, agent: Core
):
    train, val = task.splits["train"], task.splits["val"]
    reads = [read_images(doubled(task, "TIFF"), agent.backbone, None, share=share) for share in (0, 0.9)]
    assert len(reads[0].parts[1]) == len(val)
    left_out = len(val) + len(train) - len(reads[1].parts[1])
    assert len(train) / 2 < left_out <= len(train)
    for read in reads:
        assert {finding.kind for finding in read.findings} == {"twins-across-splits"}


def test_a_share_costs_no_pass_and_each_view_one_more(task: TaskImages, agent: Core):
    passes = []
    for views in (0, 0.4, 1, 2):
        agent.backbone.cache = None
        with counted() as costs:
            agent.learn(task, views=views, replace=True)
        passes.append(costs.spent["forward"] / agent.backbone.network.forward_macs)
    train, val = len(task.splits["train"]), len(task.splits["val"])
    assert passes == [train + val, train + val, 2 * train + val, 3 * train + val]


def test_the_card_says_how_many_views_were_learned(task: TaskImages, agent: Core):
    for views, format_ in ((0, 1), (0.25, 3), (2, 3)):
        card = agent.learn(task, views=views, replace=True)[0].card
        assert (card.views, card.format) == (views or None, format_)
        assert Card.parse(card.canonical().decode()) == card
        assert sum(card.counts) == len(task.splits["train"])


def test_a_third_of_the_images_is_learned_from_views_unless_another_share_is_asked_for(
    task: TaskImages, agent: Core
):
    usual, third, none = (
        agent.learn(task, replace=True, **more)[0] for more in ({}, {"views": 0.34}, {"views": 0})
    )
    assert usual.card.views == USUAL_VIEWS == 0.34
    assert all(np.array_equal(tensor, third.tensors[name]) for name, tensor in usual.tensors.items())
    assert not np.array_equal(usual.tensors["head.weight"], none.tensors["head.weight"])


def test_a_share_that_chooses_no_image_is_no_view(task: TaskImages, agent: Core):
    module, _ = agent.learn(task, views=0.1)
    assert (module.card.views, module.card.format) == (None, 1)


@dataclass(frozen=True)
class OnceReadable:
    """An image of a network folder that goes away: it can be read once."""

    name: str
    image: AnyImage
    reads: list[int] = field(default_factory=list, compare=False)

    def size(self) -> int:
        return self.image.size()

    def content(self) -> bytes:
        self.reads.append(1)
        if len(self.reads) > 1:
            raise UnreadableImageError("gone")
        return self.image.content()

    def pixels(self, content: bytes, size: int) -> np.ndarray:
        return self.image.pixels(content, size)


def vanishing(task: TaskImages) -> TaskImages:
    train = task.splits["train"]
    files = (OnceReadable("train/vanishing", train.files[0]), *train.files[1:])
    return replace(task, splits=task.splits | {"train": Split(files, train.labels)})


def test_an_image_is_read_once_for_its_view(task: TaskImages, agent: Core):
    _, lesson = agent.learn(vanishing(task), views=0.9)
    assert not lesson.unreadable


def test_a_view_that_cannot_be_made_is_reported_and_not_counted(task: TaskImages, agent: Core):
    module, lesson = agent.learn(vanishing(task), views=1)
    assert [(bad.name, bad.reason) for bad in lesson.unreadable] == [("train/vanishing", "gone")]
    assert module.tensors["sketch.freedom"][0] == sum(module.card.counts) - len(task.classes)


def test_one_image_of_each_class_can_have_views(task: TaskImages, agent: Core):
    train = task.splits["train"]
    first = [int(np.flatnonzero(train.labels == c)[0]) for c in range(len(task.classes))]
    one = Split(tuple(train.files[row] for row in first), train.labels[first])
    for views in (0.5, 1):
        module, _ = agent.learn(replace(task, splits=task.splits | {"train": one}), views=views, replace=True)
        assert module.tensors["sketch.freedom"][0] == 0


def test_shared_samples_are_images_and_not_views(task: TaskImages, tmp_path: Path):
    create_home(tmp_path / "maha", name="maha", anchor="maha", representation="features")
    agent = Core(tmp_path / "maha", cache_folder=tmp_path / "cache")
    module, _ = agent.learn(task, views=2)
    assert module.tensors["maha.count"].tolist() == list(module.card.counts)


def test_an_adaptation_has_no_views(task: TaskImages, agent: Core):
    pytest.importorskip("torch")
    with pytest.raises(AgentError, match=r"views is for a head on the plain backbone.*leave out one of views and"):
        agent.learn(task, views=1, adaptation=Adaptation("always"))


def test_an_extended_task_keeps_its_views(task: TaskImages, agent: Core):
    agent.learn(task, views=2)
    module, _ = agent.continue_task("dice", task)
    assert module.card.views == 2


def test_learning_is_the_same_each_time(task: TaskImages, tmp_path: Path):
    learned = []
    for name in ("one", "other"):
        agent = Core.open(tmp_path / name, cache_folder=tmp_path / f"{name}-cache")
        module, _ = agent.learn(task, views=1)
        learned.append(module.tensors)
    assert all(np.array_equal(learned[0][key], learned[1][key]) for key in learned[0])


def test_added_views_have_the_labels_of_their_images(task: TaskImages, agent: Core):
    backbone, part = agent.backbone, read_images(task, agent.backbone, None).parts[0]
    x, labels, _ = with_views(part, backbone.represent(part.raw, "descriptor"), 2, backbone, agent.config, None)
    assert labels.tolist() == 3 * part.labels.tolist()
    for view in range(2):
        shown = [ViewedImage(image, LEARNED, view) for image in part.images]
        rows = slice((view + 1) * len(part), (view + 2) * len(part))
        assert np.array_equal(x[rows], backbone.represent(backbone.describe(shown).raw, "descriptor"))


def test_a_head_and_an_anchor_learn_from_the_views(task: TaskImages, agent: Core):
    learned = [agent.learn(task, views=views, replace=True)[0].tensors for views in (0, 0.5, 1)]
    for name in ("head.weight", "sketch.mean"):
        assert len({tensors[name].tobytes() for tensors in learned}) == 3


@pytest.mark.parametrize("views", [0, 0.5, 1, 2])
def test_a_scatter_counts_images_and_not_their_views(views: float, task: TaskImages, agent: Core):
    """Teachers who are trusted with more images weigh more; vetting compares the number with the card."""
    module, _ = agent.learn(task, views=views)
    assert module.tensors["sketch.freedom"][0] == sum(module.card.counts) - len(task.classes)


def test_a_task_with_views_is_accepted_by_another_agent(tiny_tasks: Path, tmp_path: Path):
    anna, ben = (Core.open(tmp_path / name, cache_folder=tmp_path / "cache") for name in ("anna", "ben"))
    module, _ = anna.learn(tiny_tasks / "dice", views=1)
    anna.export("dice", tmp_path / "dice.skill")
    assert ben.import_file(tmp_path / "dice.skill").id == module.id
    assert ben.answer(min((tiny_tasks / "dice" / "test").glob("*/*"))).task == "dice"


@pytest.mark.parametrize("views", [-0.1, 1.5, 9, float("nan"), True, "1"])
def test_other_than_a_share_or_a_number_is_refused(views: object, tiny_tasks: Path, tmp_path: Path):
    agent = Agent(tmp_path / "home")
    with pytest.raises(ArgumentError, match=r"views: found .*expected a share of the training images below 1, or"):
        agent.learn(tiny_tasks / "dice", views=views)
    assert not agent.tasks()
