"""Learning with a bank that knows the classes: better from few images, with a correct record in the card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from meshes import Mesh, eventually

from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.errors import CardError, EncoderError
from skillmesh.learning import rows as sources
from skillmesh.learning.class_names import encoders
from skillmesh.learning.class_names.encoders import Letters, name_encoder
from skillmesh.learning.class_names.pairs import plain
from skillmesh.learning.head import calibrate, fit_head
from skillmesh.learning.rows import KnownClass, RowSource, has_seen, one_to_one
from skillmesh.learning.warm_start import choose, fit_epochs, fit_from
from skillmesh.module import Card, Module
from skillmesh.store.home import VALIDATION, load_validation

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]


def part(task: Path, target: Path, images: slice, splits: tuple[str, ...] = (), renamed: Any = str) -> Path:
    """Make a task of some of another's training images and of whole splits; classes may be renamed."""
    for cls in sorted((task / "train").iterdir()):
        folder = target / "train" / renamed(cls.name)
        folder.mkdir(parents=True)
        for image in sorted(cls.iterdir())[images]:
            shutil.copy(image, folder)
        for split in splits:
            shutil.copytree(task / split / cls.name, target / split / renamed(cls.name))
    return target


def _with_validation(task: Path) -> Path:
    """Make the last training image of each class a validation image."""
    for cls in sorted((task / "train").iterdir()):
        (task / "val" / cls.name).mkdir(parents=True)
        last = max(cls.iterdir())
        last.rename(task / "val" / cls.name / last.name)
    return task


@pytest.fixture(scope="module")
def parts(demo_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Dice to learn first, new images of them (in `new` with other class names), and letters."""
    folder = tmp_path_factory.mktemp("parts")
    return {
        "old": part(demo_tasks / "dice", folder / "old dice", slice(0, 6), ("val",)),
        "new": part(demo_tasks / "dice", folder / "new dice", slice(6, 7), renamed=str.upper),
        "rest": _with_validation(part(demo_tasks / "dice", folder / "more dice", slice(6, 8))),
        "greek": part(demo_tasks / "greek", folder / "letters", slice(0, 2)),
    }


@pytest.fixture(scope="module")
def taught(new_agent: NewAgent, parts: dict[str, Path]) -> Core:
    """An agent that knows dice; tests copy its module."""
    agent = new_agent("tessa")
    agent.learn(parts["old"])
    return agent


@pytest.fixture
def agent(taught: Core, new_agent: NewAgent, tmp_path: Path) -> Core:
    """An agent that imported the dice."""
    student = new_agent("sam")
    taught.export("old dice", tmp_path / "dice.skill")
    student.import_file(tmp_path / "dice.skill")
    return student


def right(agent: Core, module: Module, demo_tasks: Path) -> float:
    """Accuracy on the test images, the task given."""
    logits, labels = answered(agent, module, demo_tasks)
    return float(np.mean(logits.argmax(axis=1) == labels))


def loss(agent: Core, module: Module, demo_tasks: Path) -> float:
    """Mean log-loss on the test images at the best temperature: it tells heads apart that err equally often."""
    return calibrate(*answered(agent, module, demo_tasks))[1]


def answered(agent: Core, module: Module, demo_tasks: Path) -> tuple[np.ndarray, np.ndarray]:
    paths = sorted((demo_tasks / "dice" / "test").glob("*/*"))
    names = [name.lower() for name in module.card.classes]
    labels = np.array([names.index(path.parent.name) for path in paths])
    from skillmesh.data.inputs import as_image

    described = agent.backbone.describe([as_image(path, i) for i, path in enumerate(paths)])
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return agent.head(module).logits(x), labels


def same_tensors(one: Module, other: Module) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        one.tensors[name].tobytes() == other.tensors[name].tobytes() for name in one.tensors
    )


class TestLearning:
    def test_one_image_per_class_is_much_better_if_the_bank_knows_the_classes(self, agent, parts, demo_tasks):
        cold, cold_lesson = agent.learn(parts["new"], name="cold", warm_start=WarmStart("never"))
        agent.forget("cold")
        warm, warm_lesson = agent.learn(parts["new"], name="warm")
        assert right(agent, warm, demo_tasks) > right(agent, cold, demo_tasks) + 0.3
        assert cold.card.warm_start is None
        assert not cold_lesson.notes
        assert any("6 of 6 classes begin with rows of 'old dice' by tessa" in note for note in warm_lesson.notes)

    def test_the_card_records_the_source_of_each_row(self, agent, parts):
        warm, _ = agent.learn(parts["new"])
        source = agent.bank.find("old dice")
        record = warm.card.warm_start
        assert record.form == "prior"
        assert [(task, module) for task, module, _ in record.sources] == [("old dice", source.id)]
        assert record.sources[0][2] > 0.1
        used = [(warm.card.classes[index], name, similarity) for index, _, name, similarity in record.rows]
        assert used == [(name, name.lower(), 1.0) for name in sorted(warm.card.classes)]
        assert Card.parse(warm.card.canonical().decode()) == warm.card

    def test_unknown_classes_give_the_same_bytes_as_never(self, agent, parts):
        auto, lesson = agent.learn(parts["greek"])
        assert auto.card.warm_start is None
        assert not lesson.notes
        assert same_tensors(agent.learn(parts["greek"], replace=True, warm_start=WarmStart("never"))[0], auto)

    def test_a_module_learned_from_the_same_images_is_not_used(self, agent, parts):
        """Its rows would look too good on images that it was trained on."""
        module, lesson = agent.learn(parts["old"], name="the same dice")
        assert module.card.warm_start is None
        assert any("not used: they were learned from images of this very task" in note for note in lesson.notes)
        assert same_tensors(module, agent.learn(parts["old"], name="again", warm_start=WarmStart("never"))[0])

    def test_many_modules_learned_from_the_same_images_give_one_note(self, new_agent, parts):
        agent = new_agent()
        for number in range(5):
            agent.learn(parts["old"], name=f"dice {number}", warm_start=WarmStart("never"))
        _, lesson = agent.learn(parts["old"], name="once more")
        (note,) = [note for note in lesson.notes if note.startswith("warm start")]
        assert note.count("'dice ") == 3
        assert "and 2 more are not used: they were learned from images of this very task" in note

    def test_replacing_a_task_does_not_start_from_its_older_version(self, new_agent, parts):
        agent = new_agent()
        first, _ = agent.learn(parts["new"])
        second, lesson = agent.learn(parts["new"], replace=True)
        assert same_tensors(first, second)
        assert not lesson.notes

    def test_works_without_the_encoders_weights(self, agent, parts, monkeypatch):
        def lacking() -> Any:
            raise EncoderError("not installed")

        monkeypatch.setattr(encoders, "package_folder", lacking)
        warm, _ = agent.learn(parts["new"])
        assert len(warm.card.warm_start.rows) == 6

    def test_classes_of_the_same_name_that_look_different_are_not_used(self, agent, parts, demo_tasks, tmp_path):
        """Greek letters with the class names of dice."""
        names = iter(("five", "four", "one", "six", "three", "two", "seven"))
        folder = part(demo_tasks / "greek", tmp_path / "lies", slice(0, 8), renamed=lambda _: next(names))
        auto, lesson = agent.learn(folder)
        assert auto.card.warm_start is None
        assert any("no clear improvement over a cold start" in note for note in lesson.notes)
        assert same_tensors(auto, agent.learn(folder, replace=True, warm_start=WarmStart("never"))[0])

    @pytest.mark.parametrize("form", ["infinity", "two"])
    def test_the_card_records_the_papers_forms(self, agent, parts, demo_tasks, form):
        warm, _ = agent.learn(parts["rest"], warm_start=WarmStart(form=form))
        assert warm.card.warm_start.form == form
        assert len(warm.card.warm_start.rows) == 6
        assert not warm.tensors["head.bias"].any()
        cold, lesson = agent.learn(parts["rest"], replace=True, warm_start=WarmStart(form=form, mode="never"))
        assert cold.card.warm_start.rows == cold.card.warm_start.sources == ()
        assert not lesson.notes
        assert loss(agent, warm, demo_tasks) < loss(agent, cold, demo_tasks)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("adaptation", "reason"),
    [("biases", "biases of this task"), ("head2toe", "Head2Toe"), ("reprogramming", "reprogramming")],
)
def test_rows_of_adapted_heads_are_refused_with_a_note(new_agent, parts, tiny_tasks, adaptation, reason):
    agent = new_agent()
    adapted, _ = agent.learn(
        tiny_tasks / "dice", adaptation=Adaptation(mode="always", kind=adaptation, layers="all", epochs=1)
    )
    assert adapted.card.adapted
    module, lesson = agent.learn(parts["new"])
    assert module.card.warm_start is None
    assert any(reason in note and "cannot be used in another head" in note for note in lesson.notes)
    assert same_tensors(module, agent.learn(parts["new"], replace=True, warm_start=WarmStart("never"))[0])


@pytest.mark.torch
def test_a_head_on_an_adapted_backbone_has_no_warm_start(agent, parts):
    plain, _ = agent.learn(parts["rest"])
    assert plain.card.warm_start is not None
    module, _ = agent.learn(
        parts["rest"], replace=True, adaptation=Adaptation(mode="always", layers="last-2", epochs=1)
    )
    assert module.card.biases is not None
    assert module.card.warm_start is None


def test_the_commands_accept_and_show_the_warm_start(agent, parts, command):
    learned = command("learn", parts["new"], "--home", agent.home, "--json").json
    assert learned["warm_start"]["form"] == "prior"
    assert learned["warm_start"]["sources"][0][0] == "old dice"
    assert any("begin with rows" in note for note in learned["notes"])
    shown = command("show", "new dice", "--home", agent.home)
    assert "FIVE: 'five' of 'old dice'" in shown.out
    assert command("show", "new dice", "--home", agent.home, "--json").json["warm_start"] == learned["warm_start"]
    words = ("learn", parts["new"], "--home", agent.home, "--replace", "--json", "--warm-start", "never")
    assert command(*words).json["warm_start"] is None
    other = command(*words[:-1], "auto", "--warm-form", "infinity").json
    assert other["warm_start"]["form"] == "infinity"
    assert command(*words[:-1], "perhaps").code == 2


@pytest.fixture
def two_nodes(taught: Core, tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path, [taught.home])
    yield mesh
    mesh.stop()


@pytest.mark.slow
def test_a_student_on_the_mesh_starts_from_a_teachers_rows(two_nodes: Mesh, parts, demo_tasks) -> None:
    teacher, student = two_nodes.serve(0), two_nodes.serve()
    eventually(lambda: student.live() == {"old dice"})
    ran = student.run("learn", parts["new"], "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)["warm_start"]
    assert (record["sources"][0][0], len(record["rows"])) == ("old dice", 6)
    eventually(lambda: teacher.live() == {"old dice", "new dice"})  # and its record is exchanged too
    held = Core(teacher.home).bank.find("new dice")
    assert held.card.warm_start.sources[0][1] == Core(teacher.home).bank.find("old dice").id


class TestSources:
    def test_no_row_is_used_twice(self):
        from skillmesh.learning.class_names.pairs import Encoded

        old, new = (Encoded.of(names, Letters()) for names in (["apple tree"], ["apple trees", "apple tre"]))
        assert one_to_one(old, new, 0.5) == {0: (0, 1.0)}

    def test_names_equal_in_plain_form_are_not_encoded(self, taught, monkeypatch):
        module, counting = taught.bank.find("old dice"), _Counting()
        matching = sources._matching(["five", "a two of dice"], [module], counting)
        assert set(counting.asked) == {"5", "2 of dice", *map(plain, module.card.classes)}
        monkeypatch.setattr(sources, "MOST_NAMES", 0)
        counting = _Counting()
        assert sources._matching(["five", "a two of dice"], [module], counting) == matching
        assert set(counting.asked) == {"5", "2 of dice"}

    def test_the_number_of_encoded_names_is_limited(self):
        """Names with a common word come first, and a few of every module before all of one."""
        new = ["cupcake", "zebra stripes"]
        large = _named("large", [f"{place:04} thing" for place in range(3000)] + ["zebra crossing", "Cup Cakes"])
        small = _named("small", ["walrus", "yak"])
        spaced = _named("spaced", [f"{'cupcake'[:cut]} {'cupcake'[cut:]}" for cut in range(1, 7)])
        asked = []
        for modules in ([large, small, spaced], [spaced, small, large]):
            counting = _Counting()
            matches = {m.id: matched for m, matched in sources._matching(new, modules, counting)}
            assert matches["large"][0] == (3001, 1.0)
            assert matches["spaced"][0][1] == 1.0
            asked.append(set(counting.asked))
        assert len(asked[0]) == len({*map(plain, new)}) + sources.MOST_NAMES
        assert asked[0] == asked[1]
        assert {"zebra crossing", "walrus", "yak"} < asked[0]

    def test_very_long_names_match_only_by_equal_plain_form(self):
        long = "a very long name " * 11
        counting = _Counting()
        module = _named("long", [long.upper(), f"{long} too"])
        ((_, matches),) = sources._matching([long, "cat"], [module], counting)
        assert matches == {0: (0, 1.0)}
        assert set(counting.asked) == {plain(long), "cat"}

    def test_probes_show_whether_a_module_has_seen_the_images(self, taught):
        module = taught.bank.find("old dice")
        seen = load_validation(taught.home / VALIDATION, [module])[0].x
        assert has_seen(module, seen)
        assert not has_seen(module, seen + 0.2)

    def test_among_equal_names_the_source_with_better_rows_is_chosen(self):
        x, labels, rows = _blobs()
        good = _source("b", rows, range(4))
        wrong = _source("a", np.roll(rows, 1, axis=0), range(4))
        chosen = choose([wrong, good], (x, labels), 4)
        assert [source.task for source in chosen.sources] == ["b"]
        assert chosen.of == dict.fromkeys(range(4), 0)

    def test_a_more_similar_name_is_preferred_and_each_source_has_its_own_scale(self):
        x, labels, rows = _blobs()
        first = _source("a", rows, range(4), similarity=0.9)
        second = _source("b", 5 * rows, (0, 1), similarity=1.0)
        chosen = choose([first, second], (x, labels), 4)
        owner = {index: chosen.sources[at].task for index, at in chosen.of.items()}
        assert owner == {0: "b", 1: "b", 2: "a", 3: "a"}
        scale = {source.task: scale for source, scale in zip(chosen.sources, chosen.scales, strict=True)}
        assert scale["a"] > 2 * scale["b"]

    def test_without_sources_the_head_equals_the_cold_one_bit_for_bit(self):
        x, labels, _ = _blobs()
        warm, _ = fit_from([], (x, labels), (x[:0], labels[:0]), 4)
        cold = fit_head(x, labels, x[:0], labels[:0], 4)
        assert warm.head.weight.tobytes() == cold.head.weight.tobytes()

    def test_epochs_do_not_depend_on_the_scale_of_the_old_rows(self):
        x, labels, rows = _blobs()
        none = x[:0], labels[:0]
        small, large = (fit_epochs((x, labels), none, 4, dict(enumerate(s * rows)), "two") for s in (0.01, 100))
        np.testing.assert_allclose(small.head.weight, large.head.weight, atol=1e-5)


def _blobs() -> tuple[Any, Any, Any]:
    """Return images of four classes, their labels, and rows that classify them."""
    centres = 0.6 * np.random.default_rng(1).standard_normal((4, 60))
    labels = np.arange(40) % 4
    x = (centres[labels] + np.random.default_rng(0).standard_normal((40, 60))).astype(np.float32)
    return x, labels, (0.5 * centres).astype(np.float32)


def _source(task: str, rows: Any, classes: Any, similarity: float = 1.0) -> RowSource:
    return RowSource(task, "t", task, {c: KnownClass(f"class {c}", similarity, rows[c]) for c in classes})


def test_without_weights_names_are_compared_by_spelling(monkeypatch, tmp_path):
    def lacking() -> Any:
        raise EncoderError("not installed")

    monkeypatch.setattr(encoders, "package_folder", lacking)
    encoder = name_encoder(tmp_path)
    assert (encoder.name, encoder.threshold) == ("spelling", 1.0)


def _named(name: str, classes: list[str]) -> Any:
    """Return a stand-in for a module with an id and class names only."""
    return SimpleNamespace(id=name, card=SimpleNamespace(classes=tuple(classes)))


class _Counting(Letters):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Any) -> Any:
        self.asked += texts
        return super().encode(texts)


RECORD = {"form": "prior", "rows": [[1, 0, "cat", 0.95]], "sources": [["pets", "1" * 64, 0.5]]}


def carded(record: Any) -> Card:
    fields = {
        "task": "animals", "classes": ("dog", "cat"), "backbone": "0" * 64, "backbone_name": "lite0",
        "representation": "descriptor", "dim": 3, "compact": False, "anchors": ("sketch",), "counts": (1, 1),
        "validation_images": 0, "temperature": 1.0, "version": 1, "created": "2024-12-31T23:59:59Z",
        "teacher": "me", "teacher_key": "0" * 64, "warm_start": record,
    }  # fmt: skip
    return Card(**fields)


class TestTheCardsRecord:
    def test_it_has_one_canonical_form(self):
        card = carded(RECORD)
        assert Card.parse(card.canonical().decode()) == card
        assert (
            b'"warm_start":{"form":"prior","rows":[[1,0,"cat",0.95]],"sources":[["pets","111' in card.canonical()
        )

    def test_it_is_absent_without_a_warm_start(self):
        assert b"warm_start" not in carded(None).canonical()

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            ({"form": "three"}, "'three' at 'form'"),
            ({"rows": [[2, 0, "cat", 0.95]]}, "a class index too large"),
            ({"rows": [[0, 1, "cat", 0.95]]}, "exactly the 1 sources"),
            ({"rows": [[1, 0, "cat", 0.9], [0, 0, "dog", 0.9]]}, "out of order"),
            ({"rows": [[0, 0, "cat", 0.9], [0, 0, "dog", 0.9]]}, "repeated"),
            ({"rows": [[0, 0, "cat", 1.5]]}, "1.5 at 'rows.0.3'"),
            ({"rows": [[0, 0, "cat", float("nan")]]}, "nan"),
            ({"rows": [[0, 0, "c\x1bat", 0.5]]}, "unprintable"),
            ({"rows": [[0, 0, "cat"]]}, "at 'rows.0.3'"),
            ({"rows": 5}, "5 at 'rows'"),
            ({"rows": [], "sources": []}, "without rows"),
            ({"rows": [[0, 0, "cat", 0.5]] * 20_000}, "a list of 20000"),
            ({"sources": [["pets", "1" * 63, 0.5]]}, "sources.0.1"),
            ({"sources": [["pets", "1" * 64, -1.0]]}, "sources.0.2"),
            ({"more": 1}, "keys other"),
        ],
    )
    def test_a_wrong_record_is_refused_and_the_fault_named(self, change, found):
        with pytest.raises(CardError, match="warm_start") as refused:
            carded(RECORD | change)
        assert found in str(refused.value)

    def test_a_record_that_is_no_object_is_refused(self):
        with pytest.raises(CardError, match=r"warm_start.*found 'rows'"):
            carded("rows")
