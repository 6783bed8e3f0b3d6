"""Any text is made safe to show, and ordinary text in any script is shown unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillmesh.cli.show import json_text
from skillmesh.common.text import MAX_MARKS, hidden, safe, safe_json, safe_lines

JOINERS = {"\u200c", "\u200d", "\ufe0e", "\ufe0f"}
HOSTILE = [
    "\x1b[2J",
    "\x9b31m",
    "\r",
    "\n",
    "\t",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\u061c",
    "\u200b",
    "\ufeff",
    "\u00ad",
    "\u034f",
    "\u3164",
    "\uffa0",
    "\u115f",
    "\u2800",
    "\u180e",
    "\ufe01",
    "\U000e0100",
    "\U000e0041",
    "\U0001d173",
    "\udc80",
    "\ud800",
    "\ue000",
    "\u00a0",
]
anything = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("".join([*HOSTILE, *JOINERS, "😀❤न्مऩ1⃣"]))
)


@given(anything)
@settings(max_examples=500)
@example("\u094d\u200d\u200d")
@example("❤\ufe0f\u200d\U0001f525\u200d")
@example("a" + "\u0301" * 6 + "\u200d")
def test_any_text_becomes_one_line_without_control_or_hidden_characters(text: str):
    shown = safe(text)
    assert shown.splitlines() == ([shown] if shown else [])
    for index, letter in enumerate(shown):
        if letter not in JOINERS:
            assert hidden("x" + letter) is None, ascii(letter)
        else:
            assert index, "nothing stands before it"
            assert shown[index - 1] not in JOINERS - {"\ufe0f"}
    assert safe(shown) == shown
    shown.encode()


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda text: "-".join(f"U+{ord(c):04X}" for c in text))
def test_control_and_hidden_characters_are_escaped(bad: str):
    for text in (bad, f"cat{bad}.png", f"{bad}{bad}", f"😀{bad}", f"न्{bad}"):
        assert bad[0] not in safe(text)
    assert safe(f"cat{bad}.png").startswith("cat\\")


@pytest.mark.parametrize(
    "text",
    [
        "Steinpilz (groß), 3 % – „gut“",
        "Ελληνικά βότανα",
        "Съедобные грибы",
        "հայերեն տառեր",
        "العربية ١٢٣",
        "می\u200cخواهم",
        "עִבְרִית",
        "हिन्दी क्\u200dष क्\u200cष",
        "বাংলা ক্\u200cষ",
        "தமிழ்",
        "ภาษาไทย น้ำ",
        "བོད་ཡིག",
        "한국어",
        "日本語 カタカナ ﾊﾝｶｸ",
        "中文 𠀋",
        "Tiếng Việt",
        "e\u0301te\u0301",
        "❤\ufe0f ☎\ufe0e 1\ufe0f\u20e3",
        "\U0001f469\u200d\U0001f33e \U0001f44d\U0001f3fd \U0001f1e6\U0001f1f2",
        "\U0001f3f3\ufe0f\u200d\U0001f308",
        "x² ≤ ∞ → ½ µm",
    ],
)
def test_ordinary_text_is_shown_unchanged(text: str):
    assert safe(text) == text


def test_stacked_combining_marks_are_limited():
    shown = safe("Z" + "\u0335" * 40 + "algo")
    assert shown.count("\u0335") == MAX_MARKS
    assert (shown[0], shown[-4:]) == ("Z", "algo")


def test_joiners_that_join_nothing_are_escaped():
    for text in ("ab\u200dcd", "ab\u200ccd", "ab\ufe0f", "\u200dab", "1\ufe0f", "❤\u200d", "م\u200cx"):
        assert safe(text) != text


@given(anything)
def test_several_lines_stay_several(text: str):
    assert len(safe_lines(text).splitlines() or [""]) == len(text.split("\n")) - text.endswith("\n")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_json_is_exact_and_harmless_to_a_terminal(value: object):
    text = json_text(value)
    assert json.loads(text) == json.loads(json.dumps(value))
    assert all(letter == "\n" or hidden("x" + letter) is None for letter in text)


def test_json_keeps_every_script_readable():
    assert safe_json('"հայերեն 中文 é"') == '"հայերեն 中文 é"'


@given(anything)
def test_an_acceptable_name_is_shown_unchanged(text: str):
    if hidden(text) is None:
        assert safe(text) == text
