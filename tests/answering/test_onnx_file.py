"""An exported agent: the ONNX file answers as the agent does, with any runtime and without skillmesh."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from halves import dealt

from skillmesh import Adaptation
from skillmesh.anchors import Scorer, shortlist, sketch
from skillmesh.anchors.shortlist import ShortlistScorer
from skillmesh.answering.answer import equal_forms, supported
from skillmesh.answering.answering import UNKNOWN_BELOW, YIELD, YIELD_TO_ALL, Answering, Mapped
from skillmesh.answering.onnx_file import Classes, meanings
from skillmesh.backbone.network import Origin, load_torch_network
from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.backbone.spec import spec_of
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import open_task
from skillmesh.data.images import decode
from skillmesh.errors import AgentError, BackboneError, SettingsMismatchError, UnknownTaskError, WriteError
from skillmesh.learning.head import Head
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.graphs import OPSET, Graph, owners_of

onnx = pytest.importorskip("onnx")

NewAgent = Callable[..., Core]


def file_answers(file: Path, images: Sequence[Path]) -> list[tuple[str, str, bool, bool, float, float]]:
    """Return label, task, unknown, unsure, confidence and novelty of each image, by the file alone."""
    session = onnxruntime.InferenceSession(file)
    about = json.loads(session.get_modelmeta().custom_metadata_map["skillmesh"])
    classes = [name for task in about["tasks"] for name in task["classes"]]
    answers = []
    for image in images:
        pixels = decode(image.read_bytes(), about["size"])[None]
        label, task, confidence, novelty, *flags = (out[0] for out in session.run(None, {"pixels": pixels}))
        unknown, unsure = map(bool, flags)
        named = classes[label], about["tasks"][task]["name"], unknown, unsure
        answers.append((*named, float(confidence), float(novelty)))
    return answers


def same_answers(agent: Core, images: Sequence[Path], folder: Path) -> list[Any]:
    """Assert that the file answers like the agent; return the agent's answers."""
    ours = agent.answer(list(images))
    theirs = file_answers(agent.export_onnx(folder), images)
    named = [(answer.best.label, answer.best.task, answer.unknown, answer.unsure) for answer in ours]
    # Where rounding decides, BLAS kernels of other CPUs round otherwise: there only label and task are compared.
    close = [abs(answer.novelty - 1) < 3e-5 or abs(answer.known - UNKNOWN_BELOW) < 2e-4 for answer in ours]
    assert sum(close) < len(images) / 20
    compared = [2 if near else 4 for near in close]
    assert [answer[:n] for answer, n in zip(theirs, compared, strict=True)] == [
        answer[:n] for answer, n in zip(named, compared, strict=True)
    ]
    assert [answer[4] for answer in theirs] == pytest.approx([a.confidence for a in ours], abs=2e-4)
    assert [answer[5] for answer in theirs] == pytest.approx([a.novelty for a in ours], abs=3e-5)
    return ours


def test_an_agents_name_does_not_lead_out_of_the_folder(new_agent: NewAgent, tiny_tasks: Path, tmp_path: Path):
    agent = new_agent("../a/b")
    agent.learn(tiny_tasks / "dice")
    (tmp_path / "a").mkdir()
    (tmp_path / "there").mkdir()
    assert agent.export_onnx(tmp_path / "there") == tmp_path / "there" / ".._a_b.onnx"


@pytest.mark.parametrize(
    "settings",
    [
        {"anchor": "sketch", "unanswered": 0.5},
        {"anchor": "sketch", "compact": True, "unanswered": 0.5},
        {"anchor": "gmmc", "representation": "sqrt-features", "variance_floor": 0.01, "clusters": 3},
        {"anchor": "maha", "representation": "features"},
        pytest.param(
            {"anchor": "sketch", "representation": "sqrt-features", "unanswered": 0.5}, marks=pytest.mark.long
        ),
        pytest.param({"anchor": "gmmc", "compact": True, "clusters": 2}, marks=pytest.mark.long),
        pytest.param({"anchor": "maha", "compact": True}, marks=pytest.mark.long),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_it_answers_like_the_agent(new_agent: NewAgent, tiny_tasks, mixed, strange, tmp_path, settings):
    agent = new_agent(**settings)
    for name in ("shapes", "dice", "latin"):
        agent.learn(tiny_tasks / name)
    answers = same_answers(agent, [*mixed, *strange], tmp_path)
    given = {"unknown" if answer.unknown else "not sure" if answer.unsure else "label" for answer in answers}
    if settings["anchor"] == "sketch":
        assert given == {"unknown", "not sure", "label"}
        assert min(answer.known for answer in answers) < 0.1
    else:
        assert given == {"unknown", "label"}
        assert {answer.known for answer in answers} == {1.0}
    assert {answer.best.task for answer in answers} == {"shapes", "dice", "latin"}


def test_it_answers_like_an_agent_of_well_learned_tasks(taught: Core, mixed, strange, tmp_path):
    same_answers(taught, [*mixed, *strange], tmp_path)


def test_it_answers_like_an_agent_of_one_task(new_agent: NewAgent, tiny_tasks, mixed, tmp_path):
    agent = new_agent()
    agent.learn(tiny_tasks / "dice")
    assert {answer.task for answer in same_answers(agent, mixed, tmp_path)} == {"dice", None}


def test_confidence_has_the_temperature_of_the_mapper(new_agent: NewAgent, tiny_tasks, mixed, tmp_path):
    agent = new_agent()
    for name in ("dice", "shapes"):
        agent.learn(tiny_tasks / name)
    agent.mapper()[1].temperature = 1e4  # scores are hundreds apart
    answers = same_answers(agent, mixed, tmp_path)
    assert max(answer.confidence for answer in answers) < 0.8


def test_an_infinite_threshold_leaves_nothing_unanswered(
    new_agent: NewAgent, tiny_tasks, mixed, strange, tmp_path
):
    agent = new_agent(anchor="maha", representation="features")
    agent.learn(tiny_tasks / "dice")
    agent.mapper()[1].threshold = float("inf")
    answers = same_answers(agent, [*mixed, *strange], tmp_path)
    assert {(answer.unknown, answer.unsure, answer.novelty) for answer in answers} == {(False, False, 0.0)}


@pytest.mark.parametrize("sources", [True, False])
def test_composed_tasks_give_way_as_in_the_agent(
    new_agent: NewAgent, tiny_taught: Core, skill_files, mixed, tmp_path, sources
):
    """With all sources in the bank the penalty is `YIELD_TO_ALL`, else `YIELD`."""
    maker = new_agent("maker")
    for name in ("dice", "shapes"):
        maker.import_file(skill_files[name])
    maker.compose("both", ["dice:*", "shapes:*"])
    agent = new_agent("user")
    for file in (skill_files["dice"], skill_files["latin"], *[skill_files["shapes"]] * sources):
        agent.import_file(file)
    agent.import_file(maker.export("both", tmp_path / "both.skill"))
    penalties = agent.mapper()[1]._yields
    assert penalties.max() == pytest.approx(YIELD_TO_ALL if sources else YIELD)
    answers = same_answers(agent, mixed, tmp_path)
    assert {answer.best.task for answer in answers} > {"dice", "latin"}


def test_merged_tasks_answer_as_in_the_agent(new_agent: NewAgent, demo_tasks, mixed, tmp_path):
    agent = new_agent("stu")
    for teacher, part in zip("ab", dealt(open_task(demo_tasks / "shapes"), 2), strict=True):
        maker = new_agent(teacher)
        maker.learn(part)
        agent.import_file(maker.export("shapes", tmp_path / f"{teacher}.skill"))
    agent.learn(demo_tasks / "dice")
    agent.merge([f"shapes@{teacher}" for teacher in "ab"], "figures")
    assert "figures" in {answer.best.task for answer in same_answers(agent, mixed, tmp_path)}


@pytest.mark.parametrize("support", ["plain", "never"])
def test_classes_of_equal_names_support_one_another_as_in_the_agent(
    new_agent: NewAgent, tiny_tasks, demo_tasks, mixed, tmp_path, support
):
    agent = new_agent(support=support)
    for name, source in {"one": tiny_tasks, "two": demo_tasks, "three": tiny_tasks}.items():
        agent.learn(source / "dice", name=name, warm_start=WarmStart("never"))
    answers = same_answers(agent, mixed, tmp_path)
    assert any(answer.supported_by for answer in answers) == (support == "plain")


class TestSupport:
    """The graph's part for support, on random heads and probabilities."""

    TASKS, MOST_CLASSES, DIM = 12, 9, 6

    def modules(self, rng: np.random.Generator) -> list[Any]:
        """Return random tasks of few teachers whose classes often have equal names, also within a task."""
        names = ["Cat", "cats", "dog", "Dogs", "a dog", "eel", "fly", "gnu", "hen", "Hens", "kid", "asp"]
        modules = []
        for task in range(self.TASKS):
            classes = tuple(rng.choice(names, rng.integers(2, self.MOST_CLASSES + 1), replace=False).tolist())
            head = Head(rng.standard_normal((len(classes), self.DIM)), rng.standard_normal(len(classes)))
            card = SimpleNamespace(classes=classes, task=f"task {task}", temperature=float(rng.uniform(0.1, 3)))
            card.teacher_key, card.teacher, card.adapted = f"key {rng.integers(4)}", "t", False
            modules.append(SimpleNamespace(id=f"{task}", card=card, tensors=head.tensors()))
        again = modules[-2]  # the last task is the one before it again, with equal confidences
        return [*modules[:-1], SimpleNamespace(id="again", card=again.card, tensors=again.tensors)]

    def test_is_that_of_the_agent(self):
        rng = np.random.default_rng(0)
        kinds = {"as it is": 0, "summed": 0, "overruled": 0}
        for _ in range(12):
            modules = self.modules(rng)
            x = rng.standard_normal((60, self.DIM)).astype(np.float32)
            spread = rng.choice([0.3, 1, 4], (len(x), 1))
            posterior = np.exp(spread * rng.standard_normal((len(x), self.TASKS))).astype(np.float32)
            posterior[:, -1] = posterior[:, -2]
            posterior /= posterior.sum(axis=1, keepdims=True)
            answering = Answering(list, *[None] * 3, lambda: Teachers({}))  # type: ignore[arg-type]
            zeros = np.zeros(len(x), dtype=np.float32)
            mapped = Mapped(posterior, zeros, zeros > 0, zeros + 1)
            candidates = answering._candidates(x, mapped, modules, [None] * len(x))  # type: ignore[list-item]
            session = self.session(modules)
            for row, image, shares in zip(candidates, x, posterior, strict=True):
                best = supported(row, equal_forms)[0]
                column, confidence = session.run(None, {"x": image[None], "posterior": shares[None]})
                owner = owners_of([len(module.card.classes) for module in modules])[column[0]]
                labels = [label for module in modules for label in module.card.classes]
                assert (labels[column[0]], modules[owner].card.task) == (best.label, best.task)
                assert float(confidence.reshape(())) == pytest.approx(best.confidence, abs=1e-5)
                alone = row[0].guess
                kinds["as it is"] += best == alone
                kinds["summed"] += bool(best.supported_by)
                kinds["overruled"] += not equal_forms(best.label, alone.label)
        assert min(kinds.values()) > 20, kinds

    def session(self, modules: list[Any]) -> onnxruntime.InferenceSession:
        graph = Graph()
        outputs = Classes(modules).answer_in(graph, "x", "posterior", meanings(modules, equal_forms))
        float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
        info = onnx.helper.make_tensor_value_info
        inputs = [info("x", float32, [1, self.DIM]), info("posterior", float32, [1, self.TASKS])]
        results = [info(name, kind, None) for name, kind in zip(outputs, (int64, float32), strict=True)]
        model = onnx.helper.make_model(
            onnx.helper.make_graph([], "support", inputs, results),
            opset_imports=[onnx.helper.make_opsetid("", OPSET)],
            ir_version=10,
        )
        graph.add_to(model)
        return onnxruntime.InferenceSession(model.SerializeToString())

    def test_of_an_encoder_is_exported_if_similar_names_form_groups(self):
        modules = [SimpleNamespace(card=SimpleNamespace(classes=c)) for c in (("ab", "x"), ("abc", "y"), ("abd",))]
        beginnings = lambda one, other: one[:2] == other[:2]  # noqa: E731
        assert meanings(modules, beginnings).tolist() == [0, 1, 0, 2, 0]  # type: ignore[arg-type]
        chained = lambda one, other: one in other or other in one  # noqa: E731
        with pytest.raises(AgentError, match=r"finds 'abd' similar .* set support to plain"):
            meanings(modules, chained)  # type: ignore[arg-type]


def test_the_shortlist_of_a_large_bank_is_in_the_file(
    new_agent: NewAgent, tiny_tasks, mixed, strange, tmp_path, monkeypatch
):
    monkeypatch.setattr(sketch, "MANY_CLASSES", 3)
    monkeypatch.setattr(shortlist, "CLOSE", 2)
    monkeypatch.setattr(shortlist, "QUICK", 3)  # so few that the quick scores are often wrong
    agent = new_agent(compact=True)
    for name in ("shapes", "dice", "latin", "greek"):
        agent.learn(tiny_tasks / name)
    assert isinstance(agent.mapper()[1]._scorer, ShortlistScorer)
    x = agent.represent(agent.backbone.describe([_image(path) for path in mixed]).raw)
    assert agent.mapper()[1].shortlist_agreement(x) < 1
    same_answers(agent, [*mixed, *strange], tmp_path)


def _image(path: Path) -> Any:
    from skillmesh.data.inputs import as_image

    return as_image(path)


class TestFile:
    def test_is_standard_onnx_and_always_the_same(self, tiny_taught: Core, tmp_path):
        file = tiny_taught.export_onnx(tmp_path)
        assert file.name == f"{tiny_taught.name}.onnx"
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", OPSET)]
        assert {node.domain for node in model.graph.node} == {""}
        assert not model.functions
        assert [value.name for value in model.graph.input] == ["pixels"]
        assert tiny_taught.export_onnx(tmp_path / "again.onnx").read_bytes() == file.read_bytes()

    def test_describes_itself(self, tiny_taught: Core, tmp_path):
        session = onnxruntime.InferenceSession(tiny_taught.export_onnx(tmp_path))
        about = json.loads(session.get_modelmeta().custom_metadata_map["skillmesh"])
        modules, mapper = tiny_taught.mapper()
        assert [(t["name"], tuple(t["classes"])) for t in about["tasks"]] == [
            (module.card.task, module.card.classes) for module in modules
        ]
        assert about["fingerprint"] == tiny_taught.backbone.fingerprint
        assert about["thresholds"] == {"novelty": 1, "novelty_unscaled": mapper.threshold}
        assert about["size"] == 224
        assert "EXIF" in about["input"]
        for name, words in (("unknown", "is below"), ("unsure", "is at least")):
            assert about["outputs"][name].endswith(f"p(known) {words} {UNKNOWN_BELOW}")
        assert set(about["outputs"]) == {output.name for output in session.get_outputs()}

    def test_replaces_an_older_one_and_nothing_else(self, tiny_taught: Core, tmp_path):
        target = tmp_path / "agent.onnx"
        target.write_bytes(b"older")
        assert tiny_taught.export_onnx(target) == target
        assert target.stat().st_size > 10**7
        with pytest.raises(WriteError, match="cannot write"):
            tiny_taught.export_onnx(tmp_path / "nowhere" / "agent.onnx")
        assert [path.name for path in tmp_path.iterdir()] == ["agent.onnx"]

    def test_holds_network_mapper_and_heads_once(self, taught: Core, tmp_path):
        network, mapper = 4 * taught.backbone.network.parameters, 4 * taught.mapper()[1]._scorer.macs
        heads = sum(module.tensors["head.weight"].size for module in taught.bank)  # one byte each
        size = taught.export_onnx(tmp_path).stat().st_size
        assert size - (network + mapper + heads) < 200_000  # the graph itself, and calibration and names


class TestRefusals:
    def test_of_an_agent_without_tasks(self, new_agent: NewAgent, tmp_path):
        with pytest.raises(UnknownTaskError, match="knows no task yet"):
            new_agent().export_onnx(tmp_path)

    def test_without_the_package_onnx(self, tiny_taught: Core, tmp_path, monkeypatch):
        def missing(name: str, *rest: Any) -> Any:
            return None if name == "onnx" else find_spec(name, *rest)

        monkeypatch.setattr("skillmesh.common.extras.find_spec", missing)
        with pytest.raises(AgentError, match=r"needs the package onnx, .* install it with `pip install onnx`$"):
            tiny_taught.export_onnx(tmp_path)

    @pytest.mark.long
    def test_of_adapted_tasks_name_them(self, new_agent: NewAgent, tiny_tasks, skill_files, tmp_path):
        pytest.importorskip("torch")  # trains the adaptation
        agent = new_agent()
        agent.import_file(skill_files["latin"])
        agent.learn(tiny_tasks / "dice", adaptation=Adaptation(mode="always", epochs=1))
        with pytest.raises(AgentError, match=r"^'dice' adapts the backbone.*without it$"):
            agent.export_onnx(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_of_a_network_without_graph_say_how_to_get_one(self):
        network = SimpleNamespace(spec=spec_of("resnet18"), origin=Origin("resnet18"))
        with pytest.raises(BackboneError, match="`skillmesh backbone resnet18 --export DIR`"):
            OnnxNetwork.same_as(network)  # type: ignore[arg-type]

    def test_of_weights_that_are_no_longer_those_that_run(self):
        pytest.importorskip("torch")
        running = load_torch_network("lite0", device="cpu")
        running.fingerprint = "of the weights before"
        with pytest.raises(BackboneError, match="'lite0' have changed; start this program again"):
            OnnxNetwork.same_as(running)

    def test_of_a_kind_of_anchor_that_cannot_be_written(self):
        class Own(Scorer):
            pass

        with pytest.raises(SettingsMismatchError, match="does not define `score_in`"):
            Own().score_in(Graph(), "x")

    def test_of_a_file_beyond_the_limit_of_its_format(self, tiny_taught: Core, tmp_path, monkeypatch):
        monkeypatch.setattr("skillmesh.answering.onnx_file.MOST_BYTES", 10**7)
        with pytest.raises(AgentError, match="at most 2 GiB; export an agent of fewer tasks"):
            tiny_taught.export_onnx(tmp_path)


@pytest.mark.long
def test_a_network_that_pytorch_runs_is_exported_if_it_has_a_graph():
    pytest.importorskip("torch")
    running = load_torch_network("lite0", device="cpu")
    found = OnnxNetwork.same_as(running)
    assert isinstance(found, OnnxNetwork)
    assert found.fingerprint == running.fingerprint


def test_unrounded_heads_are_kept_as_they_are():
    """Merged tasks have heads in single precision, among others in int8."""
    head = Head(np.array([[1, 2], [3, 4]], dtype=np.float32), np.zeros(2, dtype=np.float32))
    card = SimpleNamespace(classes=("a", "b"), temperature=1.0, teacher_key="k")
    stored = SimpleNamespace(card=card, tensors=head.tensors())
    exact = {"head.weight": head.weight / 3, "head.scale": np.ones(2, dtype=np.float32), "head.bias": head.bias}
    both = Classes([stored, replace_tensors(stored, exact)])  # type: ignore[list-item]
    assert both._weight.dtype == np.float32
    np.testing.assert_array_equal(both._weight[2:], head.weight / 3)


def replace_tensors(module: Any, tensors: dict[str, np.ndarray]) -> Any:
    return SimpleNamespace(card=module.card, tensors=tensors)
