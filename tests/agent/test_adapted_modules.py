"""Modules that PyTorch has adapted are received and answer on ONNX Runtime as they do on PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from adapted import ANSWERS, IMAGES, KINDS, SETTINGS, adapted_files
from earlier import without_caution
from PIL import Image

from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.core import Core


@pytest.fixture(scope="module")
def pupil(new_agent: Callable[..., Core], tmp_path_factory: pytest.TempPathFactory) -> Core:
    agent = new_agent("pupil", **SETTINGS)
    for file in adapted_files(tmp_path_factory.mktemp("received")):
        agent.import_file(file)
    return agent


@pytest.mark.parametrize("task", KINDS)
def test_an_adapted_module_answers_as_on_torch(pupil: Core, task: str):
    assert isinstance(pupil.backbone.network, OnnxNetwork)
    assert pupil.bank.find(task).card.trial.startswith(f"{KINDS[task]}: ")
    expected = {name: confidences for name, confidences in ANSWERS.items() if name.startswith(task)}
    assert len(expected) == 3
    for name, confidences in expected.items():
        with without_caution():
            answer = pupil.answer(IMAGES[name])
        assert (answer.task, answer.label) == (task, max(confidences, key=confidences.get))
        found = {guess.label: guess.confidence / answer.known for guess in answer.guesses}
        assert found == pytest.approx(confidences, rel=0.05)


@pytest.mark.parametrize("task", KINDS)
def test_an_image_that_cannot_be_read_again_costs_no_other_answer(
    pupil: Core, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first pass takes the large image's descriptor from the cache, the task's own pass reads the file."""
    small, image = (next(IMAGES[name] for name in IMAGES if name.startswith(start)) for start in ("dice", task))
    large = tmp_path / "large.png"
    Image.open(image).resize((1200, 1200)).save(large)
    before = pupil.answer(small)
    assert pupil.answer(large).task == task
    monkeypatch.setenv("SKILLMESH_MAX_MEGAPIXELS", "1")
    given, failed = pupil.answer([small, large])
    assert (given.task, given.label, given.error) == ("dice", before.label, None)
    assert failed.label is None
    assert "expected at most 1 million" in failed.error
