"""Replay and learning without forgetting, each against its rule and a count or sum by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawn import draw_tasks, small
from torch import nn

from skillmesh.numerics.arrays import counted
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask, Batch
from skillmesh_challenge.baselines.er import Replay
from skillmesh_challenge.baselines.lwf import WithoutForgetting, distillation
from skillmesh_challenge.baselines.methods import Er, Lwf, Naive
from skillmesh_challenge.baselines.network import TaskNetwork
from skillmesh_challenge.baselines.settings import TrainedSettings
from skillmesh_challenge.baselines.trainer import Trainer
from skillmesh_challenge.run import Plan, run

pytestmark = pytest.mark.long

FEATURES = 6
PASS = 4 * FEATURES
"""MACs of a body of one layer: forwards, and backwards too, since inputs need no gradient."""


def learner(kind: type[Trainer], method: TrainedSettings, seed: int = 0) -> Trainer:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, FEATURES), nn.Tanh())
    return kind(TaskNetwork(body, torch.zeros(1, 4)), method, seed)


def task(number: int, classes: int = 2, per_class: int = 12) -> BaselineTask:
    """Return a task of vectors; all examples differ."""
    chance = torch.Generator().manual_seed(number)
    labels = torch.arange(classes).repeat(per_class)
    means = torch.randn(classes, 4, generator=chance)
    examples = BaselineExamples(means[labels] + 0.3 * torch.randn(len(labels), 4, generator=chance), labels)
    return BaselineTask(f"task{number}", classes, examples, examples)


# Replay.


def test_the_buffer_keeps_per_class_images_or_all_if_fewer():
    replay = learner(Replay, small(Er, per_class=10))
    many, few = replay.kept(task(0, classes=3), 0), replay.kept(task(1, per_class=4), 1)
    assert torch.bincount(many.labels).tolist() == [10, 10, 10]
    assert torch.bincount(few.labels).tolist() == [4, 4]
    assert len({tuple(row.tolist()) for row in many.x}) == 30  # none twice


def test_the_buffer_is_drawn_by_seed_and_task_and_images_keep_their_labels():
    one = task(0)
    replay = learner(Replay, small(Er, per_class=3))
    kept = replay.kept(one, 0)
    assert torch.equal(kept.x, learner(Replay, small(Er, per_class=3)).kept(one, 0).x)
    for other in (learner(Replay, small(Er, per_class=3), seed=1).kept(one, 0), replay.kept(one, 1)):
        assert not torch.equal(kept.x, other.x)
    for x, label in zip(kept.x, kept.labels, strict=True):
        assert one.train.labels[(one.train.x == x).all(dim=1)].tolist() == [int(label)]


def test_a_task_is_learned_from_all_its_images_and_the_whole_buffer():
    tasks = [task(number) for number in range(3)]
    replay = learner(Replay, small(Er, per_class=5))
    for each in tasks:
        replay.network.add_head(each.classes, torch.Generator())
    found = replay.examples(tasks[2], tasks[:2])
    assert torch.bincount(found.tasks).tolist() == [10, 10, 24]
    assert torch.equal(found.x[found.tasks == 2], tasks[2].train.x)
    assert torch.equal(found.x[found.tasks == 1], replay.kept(tasks[1], 1).x)


def test_work_grows_with_the_buffer_as_the_paper_says():
    """The n-th task learns 1 + (n − 1) · share times its images; every image meets all heads."""
    tasks = [task(number) for number in range(4)]
    replay = learner(Replay, small(Er, per_class=3, epochs=2, batch=12))
    for known, each in enumerate(tasks):
        with counted() as costs:
            replay.learn(each, tasks[:known])
        images = 2 * 24 * (1 + known * 6 / 24)
        assert costs.spent["forward"] == pytest.approx(images * (PASS + FEATURES * 2 * (known + 1)))
        assert costs.spent["backward"] == pytest.approx(images * (PASS + 2 * FEATURES * 2 * (known + 1)))
        assert replay.kept_bytes()["images"] == (known + 1) * 6 * 4 * 4  # six rows of four float32


def test_kept_images_count_as_their_files_or_as_pixels_where_these_are_smaller():
    one = task(0)  # rows of four float32
    files = torch.arange(1, len(one.train) + 1)
    one = replace(one, train=replace(one.train, file_bytes=files))
    replay = learner(Replay, small(Er, per_class=3))
    replay.network.add_head(one.classes, torch.Generator())
    kept = replay.kept(one, 0)
    assert kept.file_bytes is not None
    rows = [int((one.train.x == x).all(dim=1).nonzero()) for x in kept.x]
    replay.after_task(one)
    assert replay.kept_bytes()["images"] == sum(min(row + 1, 16) for row in rows)


def test_a_balanced_batch_has_as_many_old_images_as_new_ones():
    tasks = [task(0), task(1)]
    replay = learner(Replay, small(Er, per_class=3, mix="balanced", epochs=2, batch=10))
    for each in tasks:
        replay.network.add_head(each.classes, torch.Generator())
    found = replay.examples(tasks[1], tasks[:1])
    batches = list(replay.batches(found, replay.chance(1, "order")))
    assert [torch.bincount(batch.tasks).tolist() for batch in batches] == [
        [10, 10]
    ] * 5  # 48 new ones, and two more
    old = torch.cat([batch.x[batch.tasks == 0] for batch in batches])
    _, times = torch.unique(old, dim=0, return_counts=True)
    assert sorted(times.tolist()) == [8, 8, 8, 8, 9, 9]  # 50 draws of 6 images: each as often as the others


def test_each_image_is_learned_by_its_own_head():
    replay = learner(Replay, small(Er))
    for classes in (2, 3):
        replay.network.add_head(classes, torch.Generator().manual_seed(classes))
    x = torch.randn(4, 4)
    labels, tasks = torch.tensor([1, 0, 2, 1]), torch.tensor([0, 0, 1, 1])
    by_hand = [
        nn.functional.cross_entropy(replay.network(x[at : at + 1], int(tasks[at])), labels[at : at + 1])
        for at in range(4)
    ]
    assert replay.loss(Batch(x, labels, tasks)).item() == pytest.approx(sum(by_hand).item() / 4)


def test_replay_resumes_from_its_state_which_holds_no_image():
    tasks = [task(number) for number in range(3)]
    whole, first = (learner(Replay, small(Er, per_class=3)) for _ in range(2))
    for known in range(2):
        first.learn(tasks[known], tasks[:known])
    state = first.state()
    assert state["own"] == {"bytes": 2 * 6 * 4 * 4}
    second = learner(Replay, small(Er, per_class=3))
    second.restore(state, tasks[:2])
    assert second.kept_bytes() == first.kept_bytes()
    second.learn(tasks[2], tasks[:2])
    for known in range(3):
        whole.learn(tasks[known], tasks[:known])
    ours, theirs = second.network.state_dict(), whole.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert second.kept_bytes() == whole.kept_bytes()


@pytest.mark.slow
def test_replay_forgets_less_than_naive(tmp_path: Path):
    paths = draw_tasks(tmp_path / "tasks", 3)
    plan = Plan(paths, small(rate=0.2), tmp_path / "naive", agents=1, bound=False)
    naive = run(plan).results
    replay = run(replace(plan, method=small(Er, rate=0.2), out=tmp_path / "er")).results
    assert naive is not None
    assert replay is not None
    assert replay["lifelong"]["forgetting"] < naive["lifelong"]["forgetting"] - 0.15


# Learning without forgetting.


def test_distillation_matches_a_sum_by_hand():
    logits = [[1.0, -1.0, 0.5, 0.0, 2.0], [0.0, 3.0, 1.0, 1.0, -1.0]]
    recorded = [[2.0, 0.0, 1.0, -1.0, 0.0], [1.0, 1.0, 0.0, 2.0, 0.5]]
    temperature, total = 2.0, 0.0
    for now, before in zip(logits, recorded, strict=True):
        for start, end in ((0, 2), (2, 5)):  # heads of two and three classes
            soft = [math.exp(value / temperature) for value in before[start:end]]
            mine = [math.exp(value / temperature) for value in now[start:end]]
            total -= sum(p / sum(soft) * math.log(q / sum(mine)) for p, q in zip(soft, mine, strict=True))
    found = distillation(torch.tensor(logits), torch.tensor(recorded), [2, 3], temperature)
    assert found.item() == pytest.approx(total / 2, rel=1e-6)


def test_the_loss_compares_old_heads_with_recorded_answers():
    method = small(Lwf, strength=3.0, warm_up=0)
    held, new = learner(WithoutForgetting, method), task(1, classes=3)
    held.learn(task(0), [])
    held.network.add_head(3, torch.Generator())
    held.before_task(new)
    with torch.no_grad():
        said = held.network(new.train.x, 0)
        for part in held.network.body.parameters():
            part.add_(0.1)
    rows = torch.tensor([7, 2, 30])
    batch = Batch(new.train.x[rows], new.train.labels[rows], torch.ones(3, dtype=torch.long), rows)
    own = nn.functional.cross_entropy(held.network(batch.x, 1), batch.labels)
    old = distillation(held.network(batch.x, 0), said[rows], [2], method.temperature)
    assert held.loss(batch).item() == pytest.approx((own + 3.0 * old).item(), rel=1e-5)


def test_old_heads_keep_their_answers_to_new_images():
    def moved(kind: type[Trainer], method: TrainedSettings) -> float:
        network, new = learner(kind, method), task(1)
        network.learn(task(0), [])
        before = network.given(new.train.x, 0), network._logits(new.train.x, 0).softmax(dim=1)
        network.learn(new, [task(0)])
        return float((network._logits(new.train.x, 0).softmax(dim=1) - before[1]).abs().mean())

    naive = moved(Trainer, small(Naive, epochs=20))
    assert moved(WithoutForgetting, small(Lwf, epochs=20, strength=3.0, warm_up=0)) < naive / 3


def test_a_strength_of_zero_is_naive_training():
    tasks = [task(0), task(1)]
    naive, held = learner(Trainer, small(Naive)), learner(WithoutForgetting, small(Lwf, strength=0.0, warm_up=0))
    for known, each in enumerate(tasks):
        naive.learn(each, tasks[:known])
        held.learn(each, tasks[:known])
    ours, theirs = held.network.body.state_dict(), naive.network.body.state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def test_the_warm_up_moves_the_new_head_alone_and_teaches_it():
    held, new = learner(WithoutForgetting, small(Lwf, warm_up=20)), task(1)
    held.learn(task(0), [])
    before = {name: part.clone() for name, part in held.network.state_dict().items()}
    held.network.add_head(2, torch.Generator().manual_seed(1))
    untaught = held.loss(held.labelled(new.train, 1)).item()
    held.before_task(new)
    after = held.network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert nn.functional.cross_entropy(held.network(new.train.x, 1), new.train.labels).item() < untaught / 2


def test_the_pass_before_training_is_counted_once_per_image():
    held = learner(WithoutForgetting, small(Lwf, epochs=2, warm_up=3))
    held.learn(task(0), [])
    with counted() as costs:
        held.learn(task(1), [task(0)])
    head = FEATURES * 2
    look = 24 * (PASS + head)  # the body, and the one old head
    assert costs.spent["forward"] == look + 3 * 24 * head + 2 * 24 * (PASS + 2 * head)
    assert costs.spent["backward"] == 3 * 24 * head + 2 * 24 * (PASS + 2 * 2 * head)
    assert set(held.kept_bytes()) == {"weights", "head"}  # no image, no response is kept
