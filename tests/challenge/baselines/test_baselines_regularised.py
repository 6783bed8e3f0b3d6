"""EWC, Online EWC, SI and MAS: importances against numerical ones, penalties against autograd, and effects."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from skillmesh.numerics.arrays import counted
from skillmesh_challenge.baselines import methods
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask, Batch
from skillmesh_challenge.baselines.ewc import EwcLearner, EwcOnlineLearner
from skillmesh_challenge.baselines.importance import QuadraticPenalty, RegularisedLearner, SteadyPenalty
from skillmesh_challenge.baselines.mas import MasLearner
from skillmesh_challenge.baselines.network import TaskNetwork, build_body
from skillmesh_challenge.baselines.si import SiLearner
from skillmesh_challenge.baselines.trainer import Trainer
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS

pytestmark = pytest.mark.long

KINDS: dict[str, tuple[type[RegularisedLearner], type[methods.Regularised]]] = {
    "ewc": (EwcLearner, methods.Ewc),
    "ewc-online": (EwcOnlineLearner, methods.EwcOnline),
    "si": (SiLearner, methods.Si),
    "mas": (MasLearner, methods.Mas),
}
INPUTS, HIDDEN, CLASSES = 6, 5, 3
each_kind = pytest.mark.parametrize("kind", KINDS)
both_steps = pytest.mark.parametrize("steps", ["plain", "steady"])


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def a_task(seed: int, images: int = 20) -> BaselineTask:
    """Return a task whose classes are scattered around random centres."""
    chance = torch.Generator().manual_seed(seed)
    middles = 2 * torch.randn(CLASSES, INPUTS, generator=chance)

    def drawn(count: int) -> BaselineExamples:
        labels = torch.arange(count) % CLASSES
        return BaselineExamples(middles[labels] + torch.randn(count, INPUTS, generator=chance), labels)

    return BaselineTask(f"task {seed}", CLASSES, drawn(images), drawn(images))


def a_network(inputs: int = INPUTS, hidden: int = HIDDEN, seed: int = 0) -> TaskNetwork:
    """Return a network with two layers, head included."""
    torch.manual_seed(seed)
    return TaskNetwork(nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh()), torch.zeros(1, inputs))


def a_learner(kind: str, made: type[RegularisedLearner] | None = None, seed: int = 0, **changes: Any) -> Any:
    learner, settings = KINDS[kind]
    values = {"epochs": 2, "batch": 8, "rate": 0.05} | changes
    return (made or learner)(a_network(seed=seed), settings(kind, **values), seed)


def importance_of(learner: RegularisedLearner) -> list[torch.Tensor]:
    return learner.fishers[-1] if isinstance(learner, EwcLearner) else learner.importance


def by_finite_differences(weights: list[torch.Tensor], value: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the derivative of `value` by each weight, in a last dimension of the weight's size."""
    slopes, step = [], 1e-5
    for weight in weights:
        flat, columns = weight.data.view(-1), []
        for index in range(len(flat)):
            kept = float(flat[index])
            flat[index] = kept + step
            above = value()
            flat[index] = kept - step
            below = value()
            flat[index] = kept
            columns.append((above - below) / (2 * step))
        slopes.append(torch.stack(columns, -1))
    return slopes


def log_likelihoods(network: TaskNetwork, x: torch.Tensor) -> torch.Tensor:
    """Return the log-likelihood of every image and class, from the two layers' formula."""
    (first, _), head = network.body, network.heads[-1]
    with torch.no_grad():
        logits = torch.tanh(x @ first.weight.T + first.bias) @ head.weight.T + head.bias
        return logits - logits.exp().sum(1, keepdim=True).log()


def same(found: list[torch.Tensor], expected: list[torch.Tensor], **how: float) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape), **how)


# Importances.


@pytest.mark.parametrize("kind", ["ewc", "ewc-online"])
def test_empirical_fisher_is_the_mean_squared_gradient_of_the_log_likelihood(doubles: None, kind: str) -> None:
    task, learner = a_task(0), a_learner(kind, fisher="empirical")
    learner.learn(task, ())
    rows = torch.arange(len(task.train))
    slopes = by_finite_differences(
        learner.weights, lambda: log_likelihoods(learner.network, task.train.x)[rows, task.train.labels]
    )
    same(importance_of(learner), [slope.square().mean(0) for slope in slopes], rtol=1e-6, atol=1e-10)
    assert not any(one.requires_grad for one in importance_of(learner)), "no graph hangs on it"


def test_sampled_fisher_is_an_expectation_over_the_networks_own_answers(doubles: None) -> None:
    few, copies = a_task(0, images=3), 2000
    train = BaselineExamples(few.train.x.repeat(copies, 1), few.train.labels.repeat(copies))
    learner = a_learner("ewc", epochs=1, rate=1e-4, head_rate=1e-3, fisher_images=3 * copies)
    learner.learn(BaselineTask("few", CLASSES, train, few.test), ())
    shares = log_likelihoods(learner.network, few.train.x).exp()[..., None]
    slopes = by_finite_differences(learner.weights, lambda: log_likelihoods(learner.network, few.train.x))
    for found, slope in zip(learner.fishers[0], slopes, strict=True):
        squares = slope.square()
        expected = (shares * squares).sum(1)
        spread = ((shares * squares.square()).sum(1) - expected.square()).clamp_min(0).mean(0).sqrt()
        error = (found.flatten() - expected.mean(0)).abs()
        assert (error < 5 * spread / (3 * copies) ** 0.5 + 1e-9).all()
        of_labels = squares[torch.arange(3), few.train.labels].mean(0)
        assert (of_labels - expected.mean(0)).abs().max() > 0.1 * expected.mean(0).max(), "labels give another"


def test_mas_is_the_mean_absolute_gradient_of_the_squared_norm_of_the_output(doubles: None) -> None:
    task, learner = a_task(0), a_learner("mas")
    learner.learn(task, ())

    def lengths() -> torch.Tensor:
        (first, _), head = learner.network.body, learner.network.heads[-1]
        with torch.no_grad():
            return ((torch.tanh(first(task.train.x)) @ head.weight.T + head.bias) ** 2).sum(1)

    slopes = by_finite_differences(learner.weights, lengths)
    same(learner.importance, [slope.abs().mean(0) for slope in slopes], rtol=1e-6, atol=1e-9)
    learned_once = [one.clone() for one in learner.importance]
    task = a_task(1)
    learner.learn(task, ())
    slopes = by_finite_differences(learner.weights, lengths)
    added = [old.flatten() + slope.abs().mean(0) for old, slope in zip(learned_once, slopes, strict=True)]
    same(learner.importance, added, rtol=1e-6, atol=1e-9)


def test_online_fisher_decays(doubles: None) -> None:
    tasks = [a_task(0), a_task(1)]
    online = a_learner("ewc-online", fisher="empirical", strength=0.0, decay=0.7)
    separate = a_learner("ewc", fisher="empirical", strength=0.0)
    for learner in (online, separate):
        for task in tasks:
            learner.learn(task, ())
    first, second = separate.fishers
    same(online.importance, [0.7 * old + new for old, new in zip(first, second, strict=True)])


class Recorded(SiLearner):
    """Records batch and state before each step, and the weights after it."""

    def before_task(self, task: BaselineTask) -> None:
        super().before_task(task)
        self.seen: list[tuple[Batch, dict[str, torch.Tensor], list[torch.Tensor]]] = []

    def loss(self, batch: Batch) -> torch.Tensor:
        state = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        self.seen.append((batch, state, []))
        return super().loss(batch)

    def after_step(self) -> None:
        super().after_step()
        self.seen[-1][2].extend(self.copies())


def test_si_sums_minus_the_gradient_of_the_tasks_own_loss_times_the_step(doubles: None) -> None:
    learner = a_learner("si", made=Recorded, strength=3.0)
    expected_importance: list[torch.Tensor] = [torch.zeros(())] * 2
    for position in range(2):  # the second task has a penalty, whose gradient must not count
        learner.learn(a_task(position), ())
        replica = a_network()
        for _ in range(position + 1):
            replica.add_head(CLASSES, torch.Generator())
        work = [torch.zeros(weight.numel()) for weight in learner.weights]
        for batch, state, after in learner.seen:
            replica.load_state_dict(state)
            weights = list(replica.shared().values())
            rows = torch.arange(len(batch.labels))
            slopes = by_finite_differences(
                weights, lambda n=replica, b=batch, r=rows: -log_likelihoods(n, b.x)[r, b.labels].mean()
            )
            for total, slope, new, old in zip(work, slopes, after, weights, strict=True):
                total -= slope * (new - old.detach()).flatten()
        same(learner.work, work, rtol=1e-6, atol=1e-10)
        ways = [a - learner.seen[0][1][f"body.{n}"] for a, n in zip(after, replica.shared(), strict=True)]
        expected_importance = [
            total + done / (way.flatten() ** 2 + learner.method.damping)
            for total, done, way in zip(expected_importance, work, ways, strict=True)
        ]
        same(learner.importance, expected_importance, rtol=1e-6, atol=1e-7)


class Bowl(SiLearner):
    """Has a loss whose decrease is known."""

    def loss(self, batch: Batch) -> torch.Tensor:
        return sum((index + 1) / 2 * (weight - 0.3).square().sum() for index, weight in enumerate(self.weights))


def test_si_accounts_for_the_decrease_of_a_quadratic_loss(doubles: None) -> None:
    how = {"epochs": 40, "momentum": 0.0, "schedule": "constant", "rate": 1e-3}
    learner = a_learner("si", made=Bowl, **how)
    before = [weight.detach().clone() for weight in learner.weights]
    learner.learn(a_task(0), ())
    for index, (work, old, new) in enumerate(zip(learner.work, before, learner.weights, strict=True)):
        fall = (index + 1) / 2 * ((old - 0.3).square() - (new.detach() - 0.3).square())
        assert fall.sum() > 0.05, "the loss fell"
        torch.testing.assert_close(work, fall, rtol=2e-3, atol=0)


@pytest.mark.parametrize("norms", ["frozen", "trained"])
def test_importances_of_a_real_network_match_those_computed_image_by_image(norms: str) -> None:
    chance = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (20, 32, 32, 3), dtype=torch.uint8, generator=chance)
    examples = BaselineExamples(pixels, torch.arange(20) % 3)
    how = {"backbone": "test_efficientnet", "start": "random", "size": 32, "norms": norms, "epochs": 1}
    method = methods.Ewc("ewc", fisher="empirical", **how)
    body = build_body(method, 0)
    learner = EwcLearner(TaskNetwork(body, body.example(), norms == "frozen"), method, 0)
    learner.learn(BaselineTask("noise", 3, examples, examples), ())
    buffers = {name: buffer.clone() for name, buffer in body.named_buffers()}
    expected = [torch.zeros_like(weight) for weight in learner.weights]
    for row in range(20):
        loss = nn.functional.cross_entropy(
            learner.network(pixels[row : row + 1], 0), examples.labels[row : row + 1]
        )
        slopes = torch.autograd.grad(loss, learner.weights)
        expected = [total + slope.square() / 20 for total, slope in zip(expected, slopes, strict=True)]
    same(learner.fishers[0], expected, rtol=1e-3, atol=1e-9)
    learner.fisher(BaselineTask("noise", 3, examples, examples))
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in body.named_buffers()), (
        "looking changes nothing"
    )


# Penalty.


def penalty(learner: RegularisedLearner) -> torch.Tensor:
    """Return the penalty as the papers write it, with the factor ½."""
    if isinstance(learner, EwcLearner):
        kept = list(zip(learner.fishers, learner.old, strict=True))
    else:
        kept = [(learner.importance, learner.copies_at_start)]
    parts = [
        (importance.clamp_min(0) * (weight - old).square()).sum()
        for importances, olds in kept
        for importance, weight, old in zip(importances, learner.weights, olds, strict=True)
    ]
    return learner.method.strength / 2 * sum(parts)


@both_steps
@each_kind
def test_the_added_gradient_is_that_of_the_penalty(doubles: None, kind: str, steps: str) -> None:
    learner = a_learner(kind, strength=0.1, rate=0.01, steps=steps)
    for position in range(3):
        learner.learn(a_task(position), ())
    learner.copies_at_start = learner.copies()
    task = a_task(3)
    learner.network.add_head(CLASSES, torch.Generator())
    learner.before_task(task)
    with torch.no_grad():
        for weight in learner.weights:
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            weight.grad = None
    batch = learner.labelled(task.train, 3)
    expected = torch.autograd.grad(learner.loss(batch) + penalty(learner), learner.weights)
    alone = torch.autograd.grad(learner.loss(batch), learner.weights)
    learner.loss(batch).backward()
    learner.after_backward()
    same([weight.grad for weight in learner.weights], list(expected), rtol=1e-9, atol=1e-12)
    assert max((a - b).abs().max() for a, b in zip(alone, expected, strict=True)) > 1e-4, "there is a force"


def test_a_penalty_too_large_for_the_rate_ends_at_the_old_weight() -> None:
    weight, old, slope = torch.tensor([3.0, 3.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 5.0])
    for strength in (20.0, 1e6, 1e30, float("inf")):
        gradient = slope.clone()
        SteadyPenalty([torch.ones(2)], [old], strength, rate=0.1).add([weight], [gradient])
        ended = weight - 0.1 * gradient
        torch.testing.assert_close(ended, old - slope / strength)


def test_negative_importance_gives_no_penalty() -> None:
    """A weight that raised the loss along SI's path has a negative importance; it moves freely."""
    terms = ([torch.tensor([-4.0])], [torch.tensor([1.0])], 1.0)
    for added in (QuadraticPenalty(*terms), SteadyPenalty(*terms, rate=0.1)):
        gradient = torch.tensor([0.5])
        added.add([torch.tensor([3.0])], [gradient])
        assert gradient == 0.5


def test_steady_steps_reach_the_same_minimum() -> None:
    weight, old = torch.tensor([0.0]), torch.tensor([2.0])
    added, speed = (
        SteadyPenalty([torch.tensor([5.0])], [old], strength=2.0, rate=0.5),
        torch.zeros(1),
    )  # 0.5 · 10 > 1
    for _ in range(600):
        gradient = 3.0 * (weight - 1.0)
        added.add([weight], [gradient])
        speed = 0.9 * speed + gradient
        weight = weight - 0.5 * speed
    torch.testing.assert_close(weight, torch.tensor([(3.0 * 1.0 + 10.0 * 2.0) / 13.0]))


@each_kind
def test_plain_steps_diverge_under_a_large_penalty_and_steady_ones_do_not(kind: str) -> None:
    """Under smaller penalties both move the same, bit for bit."""

    def after_two(strength: float, steps: str) -> torch.Tensor:
        learner = a_learner(kind, strength=strength, rate=0.5, steps=steps)
        for position in range(2):
            learner.learn(a_task(position), ())
        return torch.cat([weight.flatten() for weight in learner.copies()])

    soft = 1e-4
    assert torch.equal(after_two(soft, "plain"), after_two(soft, "steady"))
    assert after_two(1e6, "steady").abs().max() < 10
    assert not after_two(1e6, "plain").abs().max() < 1e6


@each_kind
def test_an_enormous_strength_fixes_every_important_weight(kind: str) -> None:
    learner = a_learner(kind, strength=1e15, rate=0.5, epochs=5, steps="steady")
    learner.learn(a_task(0), ())
    before, mattered = learner.copies(), [importance > 1e-6 for importance in importance_of(learner)]
    for position in (1, 2):
        learner.learn(a_task(position), ())
    moved = [(new - old).abs() for new, old in zip(learner.copies(), before, strict=True)]
    assert sum(int(part.sum()) for part in mattered) > 15
    assert max(float(way[part].max()) for way, part in zip(moved, mattered, strict=True)) < 1e-6


@both_steps
@each_kind
def test_a_strength_of_zero_equals_naive_training_bit_for_bit(kind: str, steps: str) -> None:
    learner = a_learner(kind, strength=0.0, steps=steps)
    naive = Trainer(a_network(), methods.Naive("naive", epochs=2, batch=8, rate=0.05), 0)
    for position in range(3):
        for one in (learner, naive):
            one.learn(a_task(position), ())
    found, expected = learner.network.state_dict(), naive.network.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


# Effects.

STRENGTHS = {"ewc": 10.0, "ewc-online": 10.0, "si": 0.1, "mas": 0.03}
LONG = {"epochs": 20, "rate": 0.2, "head_rate": 0.1}


def crossed(position: int, seed: int) -> BaselineTask:
    """Return a task about the signs of two inputs, which differ per task: new features must be learned."""
    chance = torch.Generator().manual_seed(10 * seed + position)

    def drawn(count: int) -> BaselineExamples:
        x = torch.randn(count, 6, generator=chance)
        return BaselineExamples(x, (x[:, 2 * position : 2 * position + 2].prod(1) > 0).long())

    return BaselineTask(f"crossed {position}", 2, drawn(300), drawn(300))


def on_the_stream(learner: type[Trainer], settings: Any) -> float:
    """Accuracy after three tasks on the first two, over two seeds."""
    found = []
    for seed in range(2):
        one, tasks = learner(a_network(6, 32, seed), settings, seed), [crossed(place, seed) for place in range(3)]
        for task in tasks:
            one.learn(task, ())
        found += [one.given(task.test.x, place) == task.test.labels for place, task in enumerate(tasks[:2])]
    return float(torch.cat(found).double().mean())


@pytest.fixture(scope="module")
def naive_accuracy() -> float:
    return on_the_stream(Trainer, methods.Naive("naive", **LONG))


@both_steps
@each_kind
def test_old_tasks_are_forgotten_less_than_by_naive(kind: str, steps: str, naive_accuracy: float) -> None:
    learner, settings = KINDS[kind]
    found = on_the_stream(learner, settings(kind, strength=STRENGTHS[kind], **LONG | {"steps": steps}))
    print(f"{kind}: {found:.3f}, naive: {naive_accuracy:.3f}")
    assert found > naive_accuracy + 0.04


@each_kind
def test_a_restored_learner_continues_the_same(kind: str) -> None:
    learner, restored = a_learner(kind, strength=5.0), a_learner(kind, strength=5.0)
    tasks = [a_task(position) for position in range(4)]
    for task in tasks[:2]:
        learner.learn(task, ())
    file = io.BytesIO()
    torch.save(learner.state(), file)
    file.seek(0)
    restored.restore(torch.load(file, weights_only=True), tasks[:2])
    for one in (learner, restored):
        for task in tasks[2:]:
            one.learn(task, ())
    found, expected = restored.network.state_dict(), learner.network.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    same(importance_of(restored), importance_of(learner), rtol=0, atol=0)


# Costs.

IMAGES, STEPS, WEIGHTS = 20, 5, 35
"""Two epochs of 20 images in batches of 8; a layer of 6 × 5 products and 5 biases."""
PASSES = 30 + 15 + 15 + 30
"""MACs per image: forward through layer and head, backward through the head and to the layer's weights."""
PENALTY = WEIGHTS + STEPS * WEIGHTS
"""MACs of preparing the penalty and of its part in every step; EWC needs two more for each old task."""
SHORTER = 2 * WEIGHTS + STEPS * WEIGHTS
"""MACs of steady steps: computing and applying the factors."""
BY_HAND = {
    "ewc": ({"importance": IMAGES * (PASSES + WEIGHTS)}, {"importance": 0, "penalty": PENALTY + 2 * WEIGHTS}),
    "ewc-online": ({"importance": IMAGES * (PASSES + WEIGHTS)}, {"importance": WEIGHTS, "penalty": PENALTY}),
    "si": ({"importance": (STEPS + 2) * WEIGHTS}, {"importance": 0, "penalty": PENALTY}),
    "mas": ({"importance": IMAGES * PASSES}, {"importance": 0, "penalty": PENALTY}),
}


@both_steps
@each_kind
def test_products_match_a_count_by_hand(kind: str, steps: str) -> None:
    learner = a_learner(kind, strength=1e-3, steps=steps)
    training = {"forward": 2 * IMAGES * (30 + 15), "backward": 2 * IMAGES * (30 + 2 * 15)}
    first, more = BY_HAND[kind]
    penalty = more["penalty"] + (SHORTER if steps == "steady" else 0)
    second = {"importance": first["importance"] + more["importance"], "penalty": penalty}
    for position, expected in enumerate((first, second)):
        with counted() as costs:
            learner.learn(a_task(position), ())
        assert costs.spent == training | expected


def test_a_fisher_information_of_fewer_images_costs_less() -> None:
    with counted() as costs:
        a_learner("ewc", fisher_images=8).learn(a_task(0), ())
    assert costs.spent["importance"] == 8 * (PASSES + WEIGHTS)


@each_kind
def test_what_is_kept_is_counted(kind: str) -> None:
    learner = a_learner(kind)
    for position in range(3):
        learner.learn(a_task(position), ())
    network = {"weights": 4 * WEIGHTS, "head": 3 * 4 * (HIDDEN + 1) * CLASSES}
    own = {"importance": 3 * 4 * WEIGHTS, "old weights": 3 * 4 * WEIGHTS} if kind == "ewc" else None
    assert learner.kept_bytes() == network | (own or {"importance": 4 * WEIGHTS})


# Settings.


@each_kind
def test_steady_methods_have_steady_steps_and_a_grid_of_their_own(kind: str) -> None:
    plain, steady = METHODS[kind], METHODS[f"{kind}-steady"]
    assert (plain.steps, steady.steps) == ("plain", "steady")
    tried = [{changes["strength"] for changes in method.settings_to_try()} for method in (plain, steady)]
    assert max(tried[0]) < max(tried[1])
    assert plain.strength in tried[0]
    assert steady.strength in tried[1]


@each_kind
def test_unknown_kinds_of_steps_are_refused(kind: str) -> None:
    with pytest.raises(RunError, match="steps = 'stedy'; expected plain, steady"):
        a_learner(kind, steps="stedy")


@each_kind
def test_divergence_is_detected(kind: str) -> None:
    learner = a_learner(kind, strength=1e30, rate=0.5, epochs=20)
    learner.learn(a_task(0), ())
    assert learner.finite()
    learner.learn(a_task(1), ())
    assert not learner.finite()


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(RunError, match=r"strength = -1\.0; expected a number from 0 up"):
        methods.Si("si", strength=-1.0)
    with pytest.raises(RunError, match="fisher = 'true'; expected sampled, empirical"):
        methods.Ewc("ewc", fisher="true")
