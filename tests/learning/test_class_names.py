"""Plain forms of class names: different spellings become equal, different things stay different."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.learning.class_names.pairs import NUMBERS, joined, plain, singular

SAME = [
    ("Spring_Rolls", "spring roll"),
    ("RockClimbing", "rock climbing"),
    ("HTMLPage", "html page"),
    ("DVDs", "dvd"),
    ("The Dog", "dog"),
    ("Crème brûlée", "creme_brulee"),
    ("ＦＵＬＬ width", "full width"),
    ("fish & chips", "fish and chip"),
    ("Shepherd's Purse", "Shepherds purse"),
    ("Pepper, bell", "pepper (bell)"),
    ("colourful houses", "Colorful House"),
    ("grey tyre", "gray-tires"),
    ("digit three", "digit 3"),
    ("children's books", "childrens book"),
]
APART = [
    ("1.5 l", "15 l"),
    ("C++", "C"),
    ("no crack", "crack"),
    ("size 10", "size 1 0"),
    ("shorts", "short"),
    ("glasses", "glass"),
    ("+", "-"),
    ("A 4", "4"),
    ("हिन्दी", "हन्द"),
]
SINGULARS = {
    **dict.fromkeys(["glass", "octopus", "tennis", "bus", "lens", "series", "gymnastics", "dress", "pants"]),
    "berries": "berry",
    "cookies": "cookie",
    "pies": "pie",
    "ties": "tie",
    "boxes": "box",
    "dishes": "dish",
    "peaches": "peach",
    "quiches": "quiche",
    "dresses": "dress",
    "buses": "bus",
    "houses": "house",
    "horses": "horse",
    "viruses": "virus",
    "tomatoes": "tomato",
    "shoes": "shoe",
    "tacos": "taco",
    "leaves": "leaf",
    "gloves": "glove",
    "olives": "olive",
    "bananas": "banana",
    "keys": "key",
    "mice": "mouse",
}


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_of_a_name_have_the_same_plain_form(one: str, other: str) -> None:
    assert plain(one) == plain(other)


@pytest.mark.parametrize(("one", "other"), APART)
def test_different_things_keep_different_forms(one: str, other: str) -> None:
    assert joined(one) != joined(other)


@pytest.mark.parametrize(("word", "expected"), SINGULARS.items())
def test_singulars(word: str, expected: str | None) -> None:
    assert singular(word) == (expected or word)


def test_compounds_with_and_without_spaces_are_joined_to_the_same_form() -> None:
    assert joined("cup_cakes") == joined("cupcake")
    assert joined("snow boarding") == joined("snowboarding")


def test_a_name_without_letters_stays() -> None:
    assert plain("---") == "---"
    assert plain(" ") == " "


@given(st.text(min_size=1))
def test_plain_forms_are_never_empty_and_idempotent(name: str) -> None:
    form = plain(name)
    assert form
    assert plain(form) == form


WORDS = st.text(st.sampled_from("aegiklnoprsty0123456789"), min_size=1, max_size=8)


@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from(["_", "-", "  ", " / ", "__", ", "]))
def test_separators_between_words_do_not_matter(words: list[str], between: str) -> None:
    assert plain(between.join(words)) == plain(" ".join(words))


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_case_does_not_matter_and_digits_stay(words: list[str]) -> None:
    name = " ".join("x" if word in NUMBERS else word for word in words)  # "nine" is a digit, too
    assert plain(name.upper()) == plain(name)
    assert [c for c in plain(name) if c.isdigit()] == [c for c in name if c.isdigit()]
