"""What an answer states: a label, "unknown" or "not sure", and how probable it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from skillmesh import Answer
from skillmesh.answering.answer import Guess
from skillmesh.answering.answering import UNKNOWN_BELOW
from skillmesh.core import Core

GUESSES = (
    Guess("oak", "leaves", "anna", 0.5, supported_by=(Guess("Oak", "trees", "ben", 0.25),)),
    Guess("elm", "leaves", "anna", 0.125),
)
GIVEN = Answer("a.jpg", False, GUESSES, 0.5, known=0.75)
UNSURE = replace(GIVEN, novelty=1.25, unsure=True)
UNKNOWN = replace(GIVEN, novelty=2.0, unknown=True, known=0.25)


def test_only_an_answer_that_is_given_has_a_label():
    assert (GIVEN.label, GIVEN.task, GIVEN.teacher) == ("oak", "leaves", "anna")
    for answer in (UNSURE, UNKNOWN):
        assert (answer.label, answer.task, answer.teacher) == (None, None, None)


def test_what_is_not_given_keeps_its_guesses_and_their_confidence():
    for answer in (GIVEN, UNSURE, UNKNOWN):
        assert answer.best == GUESSES[0]
        assert answer.confidence == 0.5


def test_a_file_that_cannot_be_read_is_neither_known_nor_unsure():
    failed = Answer.failed("a.jpg", "broken")
    assert (failed.label, failed.unsure, failed.confidence) == (None, False, 0.0)


def test_multiplying_a_guess_multiplies_those_that_support_it():
    half = GUESSES[0].times(0.5)
    assert half.confidence == 0.25
    assert [(guess.label, guess.confidence) for guess in half.supported_by] == [("Oak", 0.125)]
    assert replace(half, confidence=0.5, supported_by=GUESSES[0].supported_by) == GUESSES[0]


@pytest.mark.parametrize("answer", [GIVEN, UNSURE, UNKNOWN, Answer.failed("a.jpg", "broken")])
def test_json_keeps_all(answer: Answer):
    plain = json.loads(json.dumps(answer.as_dict()))
    assert (plain["unsure"], plain["known"], plain["label"]) == (answer.unsure, answer.known, answer.label)
    assert Answer.from_dict(plain) == answer


def test_json_keeps_the_digits_of_small_probabilities():
    """Confidences are divided by the probability that the task is known, which must not become zero."""
    faint = replace(UNKNOWN, guesses=(replace(GUESSES[1], confidence=1.25e-7),), known=4.5678e-6)
    plain = json.loads(json.dumps(faint.as_dict()))
    assert (plain["confidence"], plain["known"]) == (1.25e-7, 4.568e-6)
    assert Answer.from_dict(plain).known == 4.568e-6


def test_json_of_older_releases_is_read_as_known_and_sure():
    plain = GIVEN.as_dict()
    del plain["unsure"], plain["known"]
    assert Answer.from_dict(plain) == replace(GIVEN, known=1.0)
    unknown = UNKNOWN.as_dict()
    del unknown["unsure"], unknown["known"]
    assert Answer.from_dict(unknown).label is None


def test_images_near_the_threshold_are_unsure_and_strange_ones_unknown(
    taught: Core, mixed: list[Path], strange: list[Path], monkeypatch: pytest.MonkeyPatch
):
    """Every image has a probability that its task is known, and its guesses count this in."""
    mapper = taught.mapper()[1]
    monkeypatch.setattr(mapper, "threshold", 0.9 * mapper.threshold)  # as if more may stay unanswered
    answers = taught.answer([*mixed, *strange])
    assert {(a.unknown, a.unsure) for a in answers} == {(False, False), (False, True), (True, False)}
    for answer in answers:
        assert answer.unknown == (answer.novelty > 1 and answer.known < UNKNOWN_BELOW)
        assert answer.unsure == (answer.novelty > 1 and answer.known >= UNKNOWN_BELOW)
        assert sum(guess.confidence for guess in answer.guesses) <= answer.known + 1e-6
    unsure, unknown = ([a.novelty for a in answers if getattr(a, name)] for name in ("unsure", "unknown"))
    assert max(unsure) < min(unknown)
