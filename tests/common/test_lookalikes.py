"""A name that looks like another is marked with the letters that are not what they seem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.common.text import Lookalikes, reading


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\u0430rmenian", "\u0430rmenian (cyrillic a)"),
        ("arm\u03b5ni\u03b1n", "arm\u03b5ni\u03b1n (greek epsilon, greek alpha)"),
        ("\uff41rmenian", "\uff41rmenian (fullwidth latin a)"),
        ("\U0001d41armenian", "\U0001d41armenian (mathematical bold a)"),
        ("arrnenian", "arrnenian"),
        ("armen\u0456an", "armen\u0456an (cyrillic byelorussian-ukrainian i)"),
        ("armeni\u0251n", "armeni\u0251n (latin alpha)"),
    ],
    ids=["cyrillic", "greek", "fullwidth", "mathematical", "rn", "ukrainian", "latin-alpha"],
)
def test_a_second_name_that_reads_like_the_first_is_marked(name: str, shown: str):
    names = Lookalikes(["armenian", name, "birds"])
    assert names.others(name) == ["armenian"]
    assert names.marked(name) == shown
    assert names.marked(name) != names.marked("armenian")
    assert names.marked("birds") == "birds"


def test_whole_words_of_two_scripts_that_look_the_same_are_both_marked():
    names = Lookalikes(["cop", "\u0441\u043e\u0440"])
    assert names.marked("cop") == "cop (latin c, latin o, latin p)"
    assert names.marked("\u0441\u043e\u0440") == "\u0441\u043e\u0440 (cyrillic es, cyrillic o, cyrillic er)"


def test_letters_of_one_script_that_look_the_same_are_marked():
    names = Lookalikes(["lris", "Iris", "1ris"])
    assert [names.marked(name) for name in ("lris", "Iris", "1ris")] == [
        "lris (latin l)",
        "Iris (latin capital i)",
        "1ris (digit one)",
    ]


def test_a_word_of_mixed_scripts_is_marked_even_alone():
    assert Lookalikes([]).marked("p\u0430ypal") == "p\u0430ypal (cyrillic a)"


@pytest.mark.parametrize(
    "name",
    [
        "грибы",
        "βότανα",
        "հայերեն",
        "日本語 task",
        "β-cells",
        "Russian грибы",
        "naïve café",
        "中文 A",
        "μm",
        "Straße",
        "kırmızı biber",
        "한국 LG",
    ],
)
def test_ordinary_names_have_no_mark(name: str):
    assert Lookalikes([name, "armenian", "task"]).marked(name) == name


def test_a_name_beside_itself_or_in_other_case_has_no_mark():
    names = Lookalikes(["birds", "birds", "Birds"])
    assert names.marked("birds") == "birds"
    assert names.marked("Birds") == "Birds"


@given(st.lists(st.text(), max_size=5))
def test_any_names_can_be_compared(names: list[str]):
    known = Lookalikes(names)
    for name in names:
        assert known.marked(name).startswith(name)
        assert all(reading(other) == reading(name) for other in known.others(name))
