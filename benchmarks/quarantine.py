"""Measure on real tasks which modules quarantine holds: honest ones hardly ever, forged ones nearly always.

    python benchmarks/quarantine.py ../shared/tasks

Agents that hold some tasks receive all others, one by one and together; then modules of second teachers of a task;
then forged modules with valid signatures, from crude ones to one that is tuned to pass and knows the whole bank.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import load_network
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import Split, TaskImages, find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.head import SHARES, Head, probe_tensors
from skillmesh.module import Identity, Module
from skillmesh.numerics.arrays import Floats, LowRank, Tensors
from skillmesh.store.home import VALIDATION, OwnValidation, create_home, load_validation
from skillmesh.vetting import bank_trial
from skillmesh.vetting.quarantine import Quarantine, Verdict, background_of, figures_of

HERE = Path(__file__).parent
OWN = (1, 2, 5)
"""Numbers of own tasks of the tested agents."""
OTHERS = (0, 10)
"""Numbers of modules of honest teachers in the bank when a forged one arrives, alternating."""
UNSEEN_SEEDS = (2, 3)
"""Seeds of the splits into tasks for the calibration and tasks to learn; 0 and 1 were used to set the bounds."""
TEST_IMAGES = 40
"""Number of test images of each task, to measure the effect of an accepted module."""


@dataclass
class World:
    """All tasks, learned, and the data with which an agent vets new modules."""

    agent: Core
    own: list[OwnValidation]
    foreign: list[Module]
    """The same modules, signed by one other teacher: an agent has its own from `own`, all others from here."""
    test: list[tuple[Floats, np.ndarray]]
    background: Floats

    @property
    def modules(self) -> list[Module]:
        return [kept.module for kept in self.own]

    @property
    def prior(self) -> Any:
        return self.agent.calibration.prior(self.agent.config.representation, self.agent.config.compact)

    def quarantine(self, mine: list[int]) -> Quarantine:
        return Quarantine(self.prior, self.agent.config.anchor, self.background, [self.own[i] for i in mine])

    def mapper(self, modules: list[Module]) -> Mapper:
        return Mapper(modules, self.agent.config.anchor, self.prior)


def learned(paths: list[Path], home: Path, **settings: object) -> World:
    create_home(home, name="honest", **settings)
    agent = Core(home)
    own, test = [], []
    for path in paths:
        folder = open_task(path, hold_out=("val", "test"), seed=0)
        module, _ = agent.learn(folder, warm_start=WarmStart("never"))
        own += load_validation(home / VALIDATION, [module])
        split = folder.splits["test"]
        rows = np.linspace(0, len(split) - 1, min(len(split), TEST_IMAGES)).astype(int)
        described = agent.backbone.describe([split.files[i] for i in rows])
        x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
        test.append((x, split.labels[rows][described.readable]))
    background = background_of(agent.calibration, agent.config.representation, agent.config.compact)
    stranger = Identity.create("stranger")
    return World(agent, own, [resigned(kept.module, stranger) for kept in own], test, background)


def resigned(module: Module, teacher: Identity) -> Module:
    card = module.card.model_copy(update={"teacher": teacher.name, "teacher_key": teacher.public_key})
    return Module.create(card, module.tensors, teacher)[0]


# 1. Honest teachers.


def alone(world: World) -> dict[str, Any]:
    """Return how close honest modules come to each bound."""
    kind = world.agent.config.anchor
    figures = [figures_of(m, kind, world.prior, world.background) for m in world.modules]
    return {
        name: {"median": float(np.median(values)), "largest": float(np.max(values))}
        for name in ("claim", "distance", "spread", "certainty", "oddity")
        for values in [[getattr(f, name) for f in figures]]
    }


def one_by_one(world: World, agents: int, rng: np.random.Generator) -> dict[str, Any]:
    """Let agents receive all other tasks in a random order, one by one."""
    tried, held = 0, []
    for number in range(agents):
        order = [int(i) for i in rng.permutation(len(world.own))]
        mine = order[: OWN[number % len(OWN)]]
        quarantine, mapper = world.quarantine(mine), None
        live = [world.modules[i] for i in mine]
        for i in order[len(mine) :]:
            verdict = quarantine.judge(live, [world.foreign[i]], mapper)
            live, mapper = verdict.modules, verdict.mapper
            tried += 1
            held += _held(verdict)
    return {"tried": tried, "held": len(held), "reasons": held}


def together(world: World, agents: int, rng: np.random.Generator) -> dict[str, Any]:
    """Let agents receive all other tasks at once; every fourth agent has no task of its own."""
    tried, held, built = 0, [], []
    for number in range(agents):
        order = [int(i) for i in rng.permutation(len(world.own))]
        mine = order[: (0, *OWN)[number % 4]]
        with _counted_builds() as builds:
            verdict = world.quarantine(mine).judge(
                [world.modules[i] for i in mine], [world.foreign[i] for i in order[len(mine) :]]
            )
        built.append(builds[0])
        tried += len(order) - len(mine)
        held += _held(verdict)
    return {"tried": tried, "held": len(held), "reasons": held, "builds": fmean(built)}


@contextmanager
def _counted_builds() -> Iterator[list[int]]:
    """Count the mappers that are built over whole banks."""
    count, build = [0], bank_trial.Mapper

    def counting(*arguments: Any) -> Mapper:
        count[0] += 1
        return build(*arguments)

    bank_trial.Mapper = counting  # type: ignore[assignment, misc]
    try:
        yield count
    finally:
        bank_trial.Mapper = build  # type: ignore[misc]


def second_teachers(world: World, paths: list[Path], home: Path, rng: np.random.Generator) -> dict[str, Any]:
    """Let one of two teachers of a task, each with half of the images, vet the other, beside other tasks."""
    teachers = []
    for half in range(2):
        create_home(home / str(half), name=f"half-{half}", **_settings(world.agent))
        teachers.append(Core(home / str(half)))
    held: list[str] = []
    for index, path in enumerate(paths):
        folder = open_task(path, hold_out=("val", "test"), seed=0)
        kept = []
        for half, teacher in enumerate(teachers):
            module, _ = teacher.learn(_half(folder, half), warm_start=WarmStart("never"))
            kept += load_validation(teacher.home / VALIDATION, [module])
        others = [world.foreign[i] for i in rng.permutation(len(paths))[: OTHERS[-1]] if i != index]
        quarantine = Quarantine(world.prior, world.agent.config.anchor, world.background, kept[:1])
        held += _held(quarantine.judge([kept[0].module, *others], [kept[1].module]))
    return {"tried": len(paths), "held": len(held), "reasons": held}


def _half(folder: TaskImages, half: int) -> TaskImages:
    splits = {name: Split(split.files[half::2], split.labels[half::2]) for name, split in folder.splits.items()}
    return replace(folder, splits=splits)


def _settings(agent: Core) -> dict[str, Any]:
    return agent.config.model_dump(include={"mapper", "representation", "compact", "variance_floor"})


def _held(verdict: Verdict) -> list[str]:
    return [f"{h.module.card.task}: {h.reason}" for h in verdict.held]


# 2. Forged modules. Each is an honest task's module, altered and signed by the attacker.


@dataclass
class Scene:
    """An agent's bank at the time when a forged module arrives."""

    world: World
    mine: list[int]
    others: list[int]
    carried: int
    """The task that the attacker starts from, which is not in the bank."""
    liar: Identity
    rng: np.random.Generator

    @property
    def carrier(self) -> Module:
        return self.world.modules[self.carried]

    @property
    def live(self) -> list[Module]:
        return self.victims() + [self.world.foreign[i] for i in self.others]

    def victims(self) -> list[Module]:
        return [self.world.modules[i] for i in self.mine]

    def forged(self, anchor: SketchAnchor, **changes: Any) -> Module:
        """Sign the carrier with another anchor and a head that answers the nearest mean."""
        classes = tuple(f"class {i}" for i in range(len(anchor.means)))
        head = Head(anchor.means / 50, np.zeros(len(classes), dtype=np.float32))
        tensors: Tensors = dict(self.carrier.tensors) | anchor.tensors() | head.tensors()
        if changes.get("validation_images") == 0:
            del tensors["probe"], tensors["probe.scale"]
        card = self.carrier.card.model_copy(
            update={
                "task": "forged",
                "classes": classes,
                "counts": (20,) * len(classes),
                "teacher": self.liar.name,
                "teacher_key": self.liar.public_key,
                **changes,
            }
        )
        return Module.create(card, tensors, self.liar)[0]

    def honest_anchor(self) -> SketchAnchor:
        return SketchAnchor.read(self.carrier.tensors)


def _means(modules: list[Module]) -> Floats:
    return np.concatenate([SketchAnchor.read(m.tensors).means for m in modules])


def _altered(scene: Scene, tensors: Tensors, **card: Any) -> Module:
    """Return the carrier with only these tensors changed."""
    card |= {"task": "forged", "teacher": scene.liar.name, "teacher_key": scene.liar.public_key}
    return Module.create(scene.carrier.card.model_copy(update=card), scene.carrier.tensors | tensors, scene.liar)[
        0
    ]


def steal_all(scene: Scene, **card: int) -> Module:
    return scene.forged(replace(scene.honest_anchor(), means=_means(scene.world.modules)), **card)


def steal_own(scene: Scene) -> Module:
    return scene.forged(replace(scene.honest_anchor(), means=surrounding(scene.victims(), scene.rng)))


def steal_others(scene: Scene) -> Module | None:
    others = [scene.world.foreign[i] for i in scene.others]
    if not others:
        return None
    return scene.forged(replace(scene.honest_anchor(), means=surrounding(others, scene.rng)))


def centre(scene: Scene, **card: int) -> Module:
    noise = 0.1 * scene.rng.standard_normal((20, len(scene.world.prior.centre)))
    means = (scene.world.prior.centre + noise).astype(np.float32)
    return scene.forged(replace(scene.honest_anchor(), means=means), **card)


def everywhere(scene: Scene, **card: int) -> Module:
    """Return a module of a thousand classes where classes usually lie."""
    between = scene.world.prior.between
    draws = scene.rng.standard_normal((1000, len(between.factor))) @ between.factor
    draws += np.sqrt(between.diagonal) * scene.rng.standard_normal((1000, between.dim))
    means = (scene.world.prior.centre + draws).astype(np.float32)
    return scene.forged(replace(scene.honest_anchor(), means=means), **card)


def wrong_names(scene: Scene) -> Module:
    """Return a copy of one of the agent's modules, a little nearer to everything, with mixed-up class names."""
    victim = scene.victims()[0]
    head, anchor = Head.read(victim.tensors), SketchAnchor.read(victim.tensors)
    mixed_up = Head(np.roll(head.weight, 1, axis=0), np.roll(head.bias, 1))
    nearer = replace(anchor, means=anchor.means * np.float32(0.98))
    card = victim.card.model_copy(update={"teacher": scene.liar.name, "teacher_key": scene.liar.public_key})
    return Module.create(card, victim.tensors | mixed_up.tensors() | nearer.tensors(), scene.liar)[0]


def swallowing_head(scene: Scene) -> Module:
    head = Head.read(scene.carrier.tensors)
    return _altered(scene, Head(head.weight, head.bias + 1e5 * (np.arange(len(head.bias)) == 0)).tensors())


def sure_head(scene: Scene) -> Module:
    head = Head.read(scene.carrier.tensors)
    return _altered(scene, Head(head.weight * 1000, head.bias * 1000).tensors())


def huge_scatter(scene: Scene) -> Module:
    return _altered(scene, {"sketch.diagonal": np.full(scene.carrier.card.dim, 255, dtype=np.uint8)})


def blinding_scatter(scene: Scene) -> Module:
    """Return a module with as much scatter as passes, along the directions in which the agent's classes differ."""
    means = _means(scene.victims()).astype(np.float64)
    means -= means.mean(axis=0)
    room = 7.5 * scene.world.prior.within.variances.sum()
    factor = means * np.sqrt(room / np.square(means).sum())
    scatter = LowRank(np.full(means.shape[1], 1e-6), factor)
    return scene.forged(replace(scene.honest_anchor(), scatter=scatter, freedom=10**9))


def huge_count(scene: Scene) -> Module:
    freedom = np.array([1e9], dtype=np.float32)
    return _altered(scene, {"sketch.freedom": freedom}, counts=(2**31,) * len(scene.carrier.card.classes))


def no_scatter(scene: Scene) -> Module:
    nothing = {name: np.zeros_like(scene.carrier.tensors[name]) for name in ("sketch.diagonal", "sketch.factor")}
    return _altered(scene, nothing | {"sketch.freedom": np.array([1e9], dtype=np.float32)})


def far_means(scene: Scene) -> Module:
    return _altered(scene, {"sketch.mean.scale": np.full_like(scene.carrier.tensors["sketch.mean.scale"], 10)})


def far_probes(scene: Scene) -> Module:
    """Return a module with probes unlike any image, so that no image is unknown any more."""
    return _altered(scene, {"probe.scale": np.full_like(scene.carrier.tensors["probe.scale"], 10)})


def strange_probes(scene: Scene) -> Module:
    """Return a module with the most unusual probes that pass as images: background images of other tasks."""
    mapped = scene.world.mapper([scene.carrier]).map(scene.world.background)
    oddest = scene.world.background[np.argsort(-mapped.novelty)[: len(SHARES)]]
    return _altered(scene, probe_tensors(oddest))


def perfect_probes(scene: Scene) -> Module:
    """Return a module with probes at class means, so that the threshold falls and own images become unknown."""
    return _altered(
        scene, probe_tensors(scene.honest_anchor().means[np.arange(4) % len(scene.carrier.card.classes)])
    )


def surrounding(victims: list[Module], rng: np.random.Generator, rows: int = 8) -> Floats:
    """Return means around each class of the victims, along the scatter of its images: one is often nearer."""
    found = []
    for victim in victims:
        anchor = SketchAnchor.read(victim.tensors)
        factor = anchor.scatter.factor
        for mean in anchor.means:
            steps = rng.standard_normal((rows, len(factor))) @ factor
            found.append(mean + 0.7 * steps)
    return np.concatenate(found).astype(np.float32)


ATTACKS: dict[str, Callable[[Scene], Module | None]] = {
    "all class means of the mesh": steal_all,
    "means around the agent's own classes": steal_own,
    "means around the others' classes": steal_others,
    "a copy that calls classes by wrong names": wrong_names,
    "20 means at the centre": centre,
    "1,000 means everywhere": everywhere,
    "all class means, no probes": partial(steal_all, validation_images=0),
    "20 means at the centre, no probes": partial(centre, validation_images=0),
    "1,000 means everywhere, no probes": partial(everywhere, validation_images=0),
    "means far away": far_means,
    "huge scatter": huge_scatter,
    "scatter where own classes differ": blinding_scatter,
    "no scatter, huge count": no_scatter,
    "huge count": huge_count,
    "head for one class only": swallowing_head,
    "head with absurd certainty": sure_head,
    "probes far away": far_probes,
    "probes of other tasks": strange_probes,
    "probes at the class means": perfect_probes,
}


def scenes(world: World, agents: int, rng: np.random.Generator) -> Iterator[Scene]:
    for number in range(agents):
        order = [int(i) for i in rng.permutation(len(world.own))]
        own, others = OWN[number % len(OWN)], OTHERS[number // len(OWN) % len(OTHERS)]
        mine, rest = order[:own], order[own:]
        carriers = [i for i in rest[others:] if "probe" in world.modules[i].tensors]
        yield Scene(world, mine, rest[:others], carriers[0], Identity.create("liar"), rng)


def harm(scene: Scene, forged: list[Module]) -> dict[str, float]:
    """Return the loss from accepting modules, in points on test images; unknown counts as wrong."""
    before, after = _tested(scene, scene.live), _tested(scene, scene.live + forged)
    return {name: 100 * (before[name] - after[name]) for name in before}


def _tested(scene: Scene, live: list[Module]) -> dict[str, float]:
    mapper = scene.world.mapper(live)
    heads = [Head.read(m.tensors) for m in live]
    right = []
    for index in [*scene.mine, *scene.others]:
        x, labels = scene.world.test[index]
        truth = np.array([c.casefold() for c in scene.world.modules[index].card.classes])[labels]
        mapped = mapper.map(x)
        answers = [
            live[t].card.classes[heads[t].logits(x[r : r + 1]).argmax()].casefold()
            for r, t in enumerate(mapped.task)
        ]
        right.append(float(np.mean((np.array(answers) == truth) & ~mapped.unanswered)))
    bank = (*scene.mine, *scene.others, scene.carried)
    hidden = [i for i in range(len(scene.world.own)) if i not in bank]
    strange = np.concatenate([scene.world.test[i][0] for i in hidden])
    return {
        "own": fmean(right[: len(scene.mine)]),
        "others": fmean(right[len(scene.mine) :] or [0.0]),
        "unknown": float(np.mean(mapper.map(strange).unknown)),
    }


def attacked(world: World, agents: int, seed: int) -> dict[str, Any]:
    """Send every forged module to the same agents."""
    table: dict[str, Any] = {}
    for name, forge in ATTACKS.items():
        held, reasons, damage = 0, [], []
        for scene in scenes(world, agents, np.random.default_rng(seed)):
            forged = forge(scene)
            if forged is None:
                continue
            verdict = world.quarantine(scene.mine).judge(scene.live, [forged])
            held += len(verdict.held)
            reasons += _held(verdict)[:1]
            damage.append(harm(scene, [forged]) | {"passed": not verdict.held})
        table[name] = {
            "tried": len(damage),
            "held": held,
            "reason": reasons[0] if reasons else None,
            "harm_if_let_in": {k: fmean(d[k] for d in damage) for k in ("own", "others", "unknown")},
            "worst_that_passed": {
                k: max((d[k] for d in damage if d["passed"]), default=0.0) for k in ("own", "others", "unknown")
            },
        }
        print(_line(name, table[name]), flush=True)
    return table


def _line(name: str, row: dict[str, Any]) -> str:
    harms = [row[key][k] for key in ("harm_if_let_in", "worst_that_passed") for k in ("own", "others", "unknown")]
    return f"{name:42} held {row['held']:3}/{row['tried']:<3}" + "".join(f"{value:8.1f}" for value in harms)


# 3. An attacker who knows everything: the bank, the rules, and what passes.


def tuned(scene: Scene, live: list[Module], targets: list[Module], number: int) -> Module | None:
    """Add means around as many classes of the targets as still pass, to an otherwise honest anchor."""
    honest = scene.honest_anchor()
    around = surrounding(targets, scene.rng).reshape(-1, 8, honest.means.shape[1])
    around = around[scene.rng.permutation(len(around))]
    quarantine = scene.world.quarantine(scene.mine)

    def with_stolen(classes: int) -> Module:
        means = np.concatenate([honest.means, *around[:classes]])
        return scene.forged(replace(honest, means=means), task=f"forged {number}")

    passing, failing, best = 0, len(around) + 1, None
    while failing - passing > 1:
        middle = (passing + failing) // 2
        forged = with_stolen(middle)
        if quarantine.judge(live, [forged]).accepted:
            passing, best = middle, forged
        else:
            failing = middle
    return best


def tuned_attack(world: World, agents: int, seed: int, modules: int = 5) -> dict[str, Any]:
    """Send tuned modules one after the other; measure the loss from the first and from all together."""
    report: dict[str, Any] = {}
    for aim in ("own", "others"):
        first, last, passed = [], [], []
        for scene in scenes(world, agents, np.random.default_rng(seed)):
            targets = scene.victims() if aim == "own" else [world.foreign[i] for i in scene.others]
            if not targets:
                continue
            forged: list[Module] = []
            for number in range(modules):
                best = tuned(scene, scene.live + forged, targets, number)
                forged += [best] if best else []
                if number == 0:
                    first.append(harm(scene, forged)[aim])
            last.append(harm(scene, forged)[aim])
            passed.append(len(forged))
        report[aim] = {
            "agents": len(first),
            "one_module": {"mean": fmean(first), "worst": max(first)},
            f"up_to_{modules}_modules": {"mean": fmean(last), "worst": max(last), "passed": fmean(passed)},
        }
        print(f"tuned against {aim}:", report[aim], flush=True)
    return report


# 4. Tasks unlike the calibration's: its background sample then says less.


def unseen(paths: list[Path], home: Path, agents: int, seed: int) -> dict[str, Any]:
    """Calibrate on one half of the tasks; learn, receive and forge with the other."""
    order = np.random.default_rng(seed).permutation(len(paths))
    half = len(paths) // 2
    network = load_network()
    home.mkdir()
    calibration = home / "calibration.safetensors"
    cache = DescriptorCache(default_folder(), network.fingerprint, engine=network.engine)
    calibrate_on(network, [paths[i] for i in sorted(order[:half])], cache).save(calibration)
    world = learned([paths[i] for i in sorted(order[half:])], home / "home", calibration=calibration)
    rng = np.random.default_rng(seed)
    print(f"calibration of other tasks, seed {seed}:", flush=True)
    return {
        "seed": seed,
        "alone": alone(world),
        "one_by_one": one_by_one(world, agents, rng),
        "together": together(world, 2 * agents, rng),
        "attacks": attacked(world, agents, seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--agents", type=int, default=12, help="simulated agents per measurement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "quarantine.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    report: dict[str, Any] = {}
    origin = provenance("python benchmarks/quarantine.py ../shared/tasks", paths, seed=options.seed)
    with TemporaryDirectory() as scratch:
        world = learned(paths, Path(scratch) / "home")
        rng = np.random.default_rng(options.seed)
        report["honest"] = {
            "alone": alone(world),
            "one_by_one": one_by_one(world, options.agents, rng),
            "together": together(world, 5 * options.agents, rng),
            "second_teachers": second_teachers(world, paths, Path(scratch), rng),
        }
        for name in ("one_by_one", "together", "second_teachers"):
            found = report["honest"][name]
            print(f"honest, {name}: held {found['held']} of {found['tried']}", *found["reasons"], sep="\n  ")
        report["attacks"] = attacked(world, options.agents, options.seed)
        report["tuned"] = tuned_attack(world, options.agents, options.seed)
        report["calibrated_on_other_tasks"] = [
            unseen(paths, Path(scratch) / f"unseen-{seed}", options.agents, seed) for seed in UNSEEN_SEEDS
        ]
    report["provenance"] = origin
    options.out.write_text(json.dumps(_rounded(report), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
