"""PSP and SupSup: keys that cancel, masks that stay fixed, and the costs of both."""

from __future__ import annotations

import copy
import hashlib
import io
import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from skillmesh.numerics.arrays import counted
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask
from skillmesh_challenge.baselines.methods import Naive, ParallelSupsup, Psp, Supsup
from skillmesh_challenge.baselines.network import TaskNetwork
from skillmesh_challenge.baselines.superposition import KeyKind, Superposition
from skillmesh_challenge.baselines.supsup import Masked
from skillmesh_challenge.baselines.task_inference import slopes
from skillmesh_challenge.baselines.trainer import Trainer
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS as METHODS_BY_NAME
from skillmesh_challenge.record import Record
from skillmesh_challenge.report import paper_tables
from skillmesh_challenge.run import Plan, run

pytestmark = pytest.mark.long

INPUTS, CLASSES = 20, 4
KINDS: tuple[KeyKind, ...] = ("binary", "complex")


def drawn_task(number: int, images: int = 96) -> BaselineTask:
    """Return a task whose classes are blobs around random means, different for every task."""
    chance = torch.Generator().manual_seed(number)
    means = torch.randn(CLASSES, INPUTS, generator=chance)
    labels = torch.arange(2 * images) % CLASSES
    x = means[labels] + 0.7 * torch.randn(2 * images, INPUTS, generator=chance)
    train, test = BaselineExamples(x[:images], labels[:images]), BaselineExamples(x[images:], labels[images:])
    return BaselineTask(f"task {number}", CLASSES, train, test)


def mlp(width: int = 64, norms: bool = True) -> nn.Module:
    torch.manual_seed(0)
    norm: Sequence[nn.Module] = [nn.BatchNorm1d(width)] if norms else []
    return nn.Sequential(nn.Linear(INPUTS, width), *norm, nn.ReLU(), nn.Linear(width, width), nn.ReLU())


def learner(method: Any, body: nn.Module | None = None, seed: int = 0) -> Any:
    module, _, name = method.made_by.partition(":")
    body = mlp() if body is None else body
    network = TaskNetwork(body, torch.zeros(1, INPUTS), frozen_norms=method.norms == "frozen")
    return getattr(import_module(f"skillmesh_challenge.baselines.{module}"), name)(network, method, seed)


def learned(one: Trainer, tasks: Sequence[BaselineTask]) -> Trainer:
    for position, task in enumerate(tasks):
        one.learn(task, tasks[:position])
    return one


def accuracy(one: Trainer, task: BaselineTask, position: int) -> float:
    return float((one.given(task.test.x, position) == task.test.labels).float().mean())


def supsup(**changes: Any) -> Supsup:
    usual = {"start": "random", "share": 0.5, "epochs": 4, "rate": 0.1, "head_rate": 0.1}
    return Supsup("supsup", **(usual | changes))


def psp(**changes: Any) -> Psp:
    return Psp("psp", **({"norms": "trained", "epochs": 8, "rate": 0.05, "head_rate": 0.1} | changes))


# Superposition.

LAYERS = {
    "linear": lambda: nn.Linear(7, 5),
    "convolution": lambda: nn.Conv2d(3, 8, 3),
    "depthwise": lambda: nn.Conv2d(6, 12, 3, groups=6),
}


@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_superposed_map_is_recovered_exactly(shape: str, kind: KeyKind) -> None:
    layer = LAYERS[shape]()
    one = Superposition(layer, kind)
    one.draw(torch.Generator().manual_seed(1))
    held = one.bind(layer.weight)
    assert not torch.allclose(held, layer.weight, atol=0.01)
    if kind == "binary":
        assert torch.equal(one.unbind(held), layer.weight)
    else:
        torch.testing.assert_close(one.unbind(held), layer.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_with_a_key_equals_rotating_the_inputs(kind: KeyKind) -> None:
    """Rotating the weight once gives the same result as rotating every image."""
    layer = nn.Linear(6, 5, bias=False)
    one = Superposition(layer, kind)
    one.draw(torch.Generator().manual_seed(1))
    x = torch.randn(10, 6)
    if kind == "binary":
        turned = x * one.key[0]
    else:
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(10, 3, 2)) * one.key[0].conj()).flatten(1)
    torch.testing.assert_close(x @ one.unbind(layer.weight).T, turned @ layer.weight.T)


@pytest.mark.parametrize("kind", KINDS)
def test_interference_of_other_maps_matches_theory(kind: KeyKind) -> None:
    """Mean 0 and the stated variance, over many draws of keys for fixed maps and inputs."""
    chance = torch.Generator().manual_seed(3)
    count, inputs, draws = 4, 12, 3000
    maps = [torch.randn(1, inputs, generator=chance) for _ in range(count)]
    x = torch.randn(inputs, generator=chance)
    errors = []
    layer = nn.Linear(inputs, 1, bias=False)
    sums = [Superposition(layer, kind) for _ in range(count)]
    for _ in range(draws):
        for one in sums:
            one.draw(chance)
        held = torch.stack([one.bind(weight) for one, weight in zip(sums, maps, strict=True)]).sum(dim=0)
        errors.append((sums[0].unbind(held) - maps[0]) @ x)
    error = torch.cat(errors).double()
    if kind == "binary":
        theory = sum(float((weight[0] ** 2 * x**2).sum()) for weight in maps[1:])
    else:
        pairs = [weight.reshape(-1, 2).square().sum(1) * x.reshape(-1, 2).square().sum(1) for weight in maps[1:]]
        theory = sum(float(pair.sum()) / 2 for pair in pairs)
    # Four standard errors; that of a variance from the fourth moment, as errors are not quite normal.
    assert abs(float(error.mean())) < 4 * math.sqrt(theory / draws)
    spread = float((error**2).std()) / math.sqrt(draws)
    assert abs(float((error**2).mean()) - theory) < 4 * spread
    assert 4 * spread < 0.15 * theory


@pytest.mark.parametrize("kind", KINDS)
def test_interference_of_random_maps_grows_with_their_number(kind: KeyKind) -> None:
    """The variance is (K−1)·σ²·|x|² for equal maps; without keys it would be K−1 times as large."""
    chance = torch.Generator().manual_seed(4)
    inputs, outputs, deviation, draws = 30, 500, 0.1, 200
    x = torch.randn(inputs, generator=chance)
    layer = nn.Linear(inputs, outputs, bias=False)
    weight = deviation * torch.randn(outputs, inputs, generator=chance)
    for count in (2, 5, 17):
        errors = []
        for _ in range(draws):
            keyed = [Superposition(layer, kind) for _ in range(count)]
            for one in keyed:
                one.draw(chance)
            held = torch.stack([one.bind(weight) for one in keyed]).sum(dim=0)
            errors.append((keyed[0].unbind(held) - weight) @ x)
        error = torch.stack(errors)
        theory = (count - 1) * deviation**2 * float(x @ x)
        assert float(error.square().mean()) == pytest.approx(theory, rel=0.15)
        assert float(((count - 1) * weight @ x).square().mean()) > 0.8 * (count - 1) * theory  # added without keys


# PSP.


def remembered(method: Any, tasks: Sequence[BaselineTask]) -> float:
    """Return the accuracy on all tasks but the newest, with a body in which only weights are shared."""
    one = learned(learner(method, mlp(norms=False)), tasks)
    return sum(accuracy(one, task, position) for position, task in enumerate(tasks[:-1])) / (len(tasks) - 1)


@pytest.mark.parametrize("superpose", ["weights", "changes"])
@pytest.mark.parametrize("keys", KINDS)
def test_psp_forgets_less_than_naive(superpose: str, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are the reason: without them it forgets as much, though each task has its own biases."""
    tasks = [drawn_task(number) for number in range(6)]
    method = psp(superpose=superpose, keys=keys, rate=0.2)
    with_keys = remembered(method, tasks)
    assert with_keys > 0.95
    assert with_keys > remembered(Naive("naive", norms="trained", epochs=8, rate=0.2, head_rate=0.1), tasks) + 0.1
    monkeypatch.setattr(Superposition, "draw", lambda one, _chance: one.clear())
    assert with_keys > remembered(method, tasks) + 0.05


@pytest.mark.parametrize("superpose", ["weights", "changes"])
def test_psp_begins_with_the_initial_weights(superpose: str) -> None:
    """This holds for the first task in both variants, and for all tasks where changes are superposed."""
    body = mlp()
    x = torch.randn(5, INPUTS)
    expected = copy.deepcopy(body).eval()(x)
    one = learner(psp(superpose=superpose, rate=0.0), body)
    for position in range(2):
        one.learn(drawn_task(position), [])
        one._set_own(one._start)
        same = torch.allclose(one.network.body(x), expected, atol=1e-5)
        assert same == (position == 0 or superpose == "changes")
        one._shown = None


def test_psp_counts_keys_as_bits_and_norms_per_task() -> None:
    one = learned(learner(psp()), [drawn_task(number) for number in range(3)])
    kept = one.kept_bytes()
    assert kept["keys"] == 3 * (math.ceil(INPUTS / 8) + 64 // 8)
    assert kept["norms"] == 3 * 4 * (4 * 64 + 2 * 64)  # scale, shift and two statistics; two layers' biases
    assert kept["weights"] == 4 * (INPUTS * 64 + 64 * 64)


# SupSup.


def frozen_hash(one: Any) -> str:
    weights = [part for name, part in one.network.body.named_parameters() if "original" in name or "bias" in name]
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in weights)).hexdigest()


def test_only_scores_and_the_head_learn() -> None:
    one = learner(supsup())
    before = frozen_hash(one)
    with_gradients: set[str] = set()
    watched = one.after_backward

    def watch() -> None:
        watched()
        with_gradients.update(name for name, part in one.network.named_parameters() if part.grad is not None)

    one.after_backward = watch
    one.learn(drawn_task(0), [])
    assert with_gradients == {
        "body.0.parametrizations.weight.0.scores",
        "body.3.parametrizations.weight.0.scores",
        "heads.0.weight",
        "heads.0.bias",
    }
    assert frozen_hash(one) == before


@pytest.mark.parametrize("start", ["random", "pretrained"])
def test_bits_give_the_same_answers_as_scores(start: str) -> None:
    one = learner(supsup(start=start))
    task, seen = drawn_task(0), []
    settle = one._settle

    def look(x: torch.Tensor) -> None:
        settle(x)
        assert all(mask.scores is not None for mask in one._masks)
        with torch.no_grad():
            seen.append(one.network(task.test.x, 0))

    one._settle = look
    one.learn(task, [])
    assert all(mask.scores is None for mask in one._masks)
    assert torch.equal(one._logits(task.test.x, 0), seen[0])
    assert not any("scores" in name for name in one.network.state_dict())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.93, 1.0])
def test_every_layer_keeps_its_share(share: float) -> None:
    one = learner(supsup(share=share))
    one.learn(drawn_task(0), [])
    for mask, values in zip(one._masks, one.masks(0), strict=True):
        assert int(values.sum()) == round(share * mask.mask.numel())


def test_first_mask_keeps_the_largest_weights_of_a_pretrained_start() -> None:
    one = learner(supsup(start="pretrained", share=0.25, rate=0.0))
    weight = one.network.body[0].weight.detach().clone()
    one.learn(drawn_task(0), [])
    kept = next(one.masks(0)).view_as(weight).bool()
    assert weight[kept].abs().min() > weight[~kept].abs().max()


def test_gradients_pass_straight_through_the_mask() -> None:
    """y = Σ w·m·x and L = y²/2 give ∂L/∂s = y·w·x·sign(s) for every score, chosen or not."""
    weight, x = torch.tensor([[1.0, -2.0, 3.0, 4.0]]), torch.tensor([5.0, 6.0, 7.0, 8.0])
    mask = Masked(weight, share=0.5)
    mask.learn(torch.tensor([[0.1, -0.9, 0.2, 0.5]]))
    assert mask.chosen().tolist() == [[0.0, 1.0, 0.0, 1.0]]
    y = mask(weight) @ x
    assert y.item() == -12 + 32
    (y**2 / 2).sum().backward()
    assert mask.scores is not None
    assert mask.scores.grad is not None
    assert mask.scores.grad.tolist() == [[20 * 5.0, -20 * -12.0, 20 * 21.0, 20 * 32.0]]


def test_frozen_weights_are_signed_constants() -> None:
    one = learner(supsup(share=0.5), seed=1)
    weight = one.network.body[0].parametrizations.weight.original
    assert torch.allclose(weight.abs(), torch.tensor(math.sqrt(2 / (0.5 * INPUTS))))
    assert 0.4 < float((weight > 0).float().mean()) < 0.6
    again, other = (learner(supsup(share=0.5), seed=seed) for seed in (1, 2))
    assert torch.equal(again.network.body[0].parametrizations.weight.original, weight)
    assert not torch.equal(other.network.body[0].parametrizations.weight.original, weight)


@pytest.mark.parametrize("start", ["random", "pretrained"])
def test_supsup_does_not_forget(start: str) -> None:
    tasks = [drawn_task(number) for number in range(3)]
    one = learner(supsup(start=start))
    one.learn(tasks[0], [])
    at_first, first = one._logits(tasks[0].test.x, 0), accuracy(one, tasks[0], 0)
    assert first > 0.5
    for position in (1, 2):
        one.learn(tasks[position], tasks[:position])
    assert accuracy(one, tasks[0], 0) == first
    assert torch.equal(one._logits(tasks[0].test.x, 0), at_first)


def test_tasks_do_not_depend_on_each_other() -> None:
    """So agents may learn in parallel: the third task gives the same result alone and after two others."""
    tasks = [drawn_task(number) for number in range(3)]
    in_sequence = learned(learner(supsup()), tasks)
    alone = learner(supsup())
    alone.restore(learned(learner(supsup()), [drawn_task(7), drawn_task(8)]).state(), [])
    alone.learn(tasks[2], [])
    assert torch.equal(alone._logits(tasks[2].test.x, 2), in_sequence._logits(tasks[2].test.x, 2))


def test_supsup_counts_masks_as_bits_and_the_seed() -> None:
    one = learned(learner(supsup()), [drawn_task(0), drawn_task(1)])
    assert one.kept_bytes() == {
        "seed": 8,
        "masks": 2 * math.ceil((INPUTS * 64 + 64 * 64) / 8),
        "norms": 2 * 4 * 2 * 64,
        "head": 2 * 4 * (64 + 1) * CLASSES,
    }
    assert "seed" not in learned(learner(supsup(start="pretrained")), [drawn_task(0)]).kept_bytes()


@pytest.mark.parametrize("telling", ["entropy", "one-shot"])
def test_supsup_infers_tasks_better_than_chance(telling: str) -> None:
    tasks = [drawn_task(number) for number in range(3)]
    one = learned(learner(supsup(telling=telling, epochs=20), mlp(128)), tasks)
    right = []
    for position, task in enumerate(tasks):
        answers = one.withheld(task.test.x)
        right.append(float((answers.tasks == position).float().mean()))
        assert torch.equal(
            answers.classes[answers.tasks == position], one.given(task.test.x, position)[answers.tasks == position]
        )
    assert sum(right) / 3 > 0.7  # chance is a third


def test_gradients_match_numerical_derivatives() -> None:
    chance = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, dtype=torch.float64, generator=chance) for shape in ((4, 6), (5, 6)))
    masks = [torch.randint(0, 2, (5, 6), generator=chance).double() for _ in range(3)]
    heads = [nn.Linear(5, classes).double() for classes in (2, 3, 4)]

    def unsure(coefficients: Sequence[float]) -> torch.Tensor:
        mixed = sum(c * mask for c, mask in zip(coefficients, masks, strict=True)) * weight
        features = torch.relu(x @ mixed.T)
        likely = torch.cat([c * head(features) for c, head in zip(coefficients, heads, strict=True)], 1).softmax(1)
        return -(likely * likely.log()).sum(1) / math.log(9)

    layer = nn.Linear(6, 5, bias=False).double()
    layer.weight.data.copy_(weight)
    parametrize.register_parametrization(layer, "weight", Masked(weight, 0.5))
    name = "0.parametrizations.weight.0.mask"
    body, step = nn.Sequential(layer, nn.ReLU()), 1e-6
    for position, found in enumerate(slopes(body, heads, x, lambda task: {name: masks[task]}, {})):
        up, down = ([1 / 3 + sign * step * (position == i) for i in range(3)] for sign in (1, -1))
        torch.testing.assert_close(found.float(), ((unsure(up) - unsure(down)) / (2 * step)).detach().float())


# Both.

METHODS = {
    "psp": lambda: psp(keys="binary"),
    "psp weights": lambda: psp(keys="complex", superpose="weights"),
    "supsup": lambda: supsup(),
    "supsup pretrained": lambda: supsup(start="pretrained"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_run_resumes_with_the_same_results(name: str) -> None:
    tasks = [drawn_task(number) for number in range(3)]
    whole = learned(learner(METHODS[name]()), tasks)
    begun = learned(learner(METHODS[name]()), tasks[:2])
    file = io.BytesIO()
    torch.save(begun.state(), file)
    file.seek(0)
    again = learner(METHODS[name]())
    again.restore(torch.load(file, weights_only=True), tasks[:2])
    again.learn(tasks[2], tasks[:2])
    for position, task in enumerate(tasks):
        assert torch.equal(again._logits(task.test.x, position), whole._logits(task.test.x, position))
    assert again.kept_bytes() == whole.kept_bytes()


@pytest.mark.parametrize(("name", "per_weight"), [("psp", 2), ("psp weights", 4), ("supsup", 2)])
def test_costs_are_those_of_training_and_a_pass_over_the_weights_per_step(name: str, per_weight: int) -> None:
    method = METHODS[name]()
    images, weights = 96, INPUTS * 64 + 64 * 64
    with counted() as costs:
        learner(method).learn(drawn_task(0, images), [])
    head = 64 * CLASSES
    own = costs.spent["masks" if name == "supsup" else "keys"]
    assert own == per_weight * weights * method.epochs * images / method.batch
    again = 128  # once more for the norms, in a batch of their own that is filled up
    assert costs.spent["forward"] == method.epochs * images * (weights + head) + again * weights
    # Scores' gradients are the weights' gradients times the weights: nothing is saved backwards.
    assert costs.spent["backward"] == method.epochs * images * (2 * weights - INPUTS * 64 + 2 * head)


# As methods of the challenge.


def played(method: Supsup, tasks: Path, out: Path, agents: int) -> Record:
    paths = [tasks / name for name in ("shapes", "dice", "latin")]
    return run(Plan(paths, method, out, agents=agents, assign="round-robin", workers=1, threads=1, bound=False))


@pytest.mark.slow
def test_agents_side_by_side_learn_what_one_learns_in_sequence(tiny_tasks: Path, tmp_path: Path) -> None:
    settings = {"backbone": "test_efficientnet", "start": "random", "size": 32, "epochs": 2, "batch": 4}
    one = played(Supsup("one", **settings), tiny_tasks, tmp_path / "one", 1)  # type: ignore[arg-type]
    many = played(ParallelSupsup("many", **settings), tiny_tasks, tmp_path / "many", 3)  # type: ignore[arg-type]
    assert [step.tasks for step in many.steps] == [step.tasks for step in one.steps]
    assert len({learned.agent for learned in many.learned}) == 3
    sent = [learned.module_bytes for learned in many.learned]
    assert sent[1:] == [learned.module_bytes for learned in one.learned][1:]
    assert many.learned[1].parts.keys() == {"masks", "norms", "head", "seed"}
    assert many.learned[1].parts["seed"] == 0
    assert one.results is not None
    assert many.results is not None
    costs, alone = many.results["costs"], one.results["costs"]
    assert costs["received_bytes"] == pytest.approx(2 * sum(sent) / 3)
    assert costs["teacher"] == pytest.approx(alone["teacher"] / 3)


def test_sequential_supsup_refuses_many_agents(tiny_tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="give --agents 1"):
        played(Supsup("one", backbone="test_efficientnet", start="random", size=32), tiny_tasks, tmp_path, 2)


def test_invalid_mask_shares_are_refused() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(RunError, match="share"):
            supsup(share=share)


def test_variants_are_listed_in_the_row_of_their_kind() -> None:
    printed = {"PSP": {}, "SUPSUP": {}, "Parallel SUPSUP": {}, "LLL, BB, MAHA": {}}
    rows = {
        "psp-resnet18": "PSP",
        "supsup-resnet50": "SUPSUP",
        "supsup-parallel": "SUPSUP",
        "maha-biases": "LLL, BB, MAHA",
        "naive": None,
    }
    for name, row in rows.items():
        assert paper_tables.row_of(METHODS_BY_NAME[name].settings(), printed) == row
    parallel = {"Parallel SUPSUP": {}}
    method = METHODS_BY_NAME["supsup-parallel"].settings()
    assert paper_tables.row_of(method, parallel) == "Parallel SUPSUP"
