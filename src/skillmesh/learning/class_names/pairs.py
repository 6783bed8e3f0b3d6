"""Which classes of different tasks mean the same: by plain form and by similarity of their names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import DataError

if TYPE_CHECKING:
    from skillmesh.learning.class_names.encoders import Encoder, Rows

# The plain form of class names removes differences of spelling: `Spring_Rolls` and `spring roll` become equal.
#
# The rules are few and careful. They leave unknown words unchanged, for the encoder to compare: a plural that
# stays does little harm, but a `glass` that becomes `glas` does.

CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
WORD = re.compile(r"\d+(?:\.\d+)+|\d+|[^\W\d_]+(?:[^\W_]+)?|.")
ACCENTS = re.compile("[\u0300-\u036f]")
"""Accents of Latin, Greek and Cyrillic letters only: in other scripts marks are vowels, part of the word."""
APOSTROPHES = re.compile(r"(?<=\w)['’ʼ](?=\w)")
ARTICLES = frozenset({"a", "an", "the"})
BETWEEN_DIGITS = re.compile(r"(?<=\d) (?=\d)")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _table(pairs: str) -> dict[str, str]:
    return {word: other for word, _, other in (pair.partition(":") for pair in pairs.split())}


IRREGULAR = _table(
    "men:man women:woman children:child people:person teeth:tooth feet:foot geese:goose mice:mouse oxen:ox "
    "cacti:cactus fungi:fungus leaves:leaf loaves:loaf knives:knife wolves:wolf halves:half elves:elf calves:calf "
    "shelves:shelf scarves:scarf thieves:thief hooves:hoof wives:wife sheaves:sheaf quizzes:quiz gases:gas "
    "lenses:lens irises:iris canvases:canvas atlases:atlas kiwis:kiwi taxis:taxi skis:ski emus:emu menus:menu "
    "bikinis:bikini bacteria:bacterium nuclei:nucleus larvae:larva"
)
KEPT = _set(
    "adidas alias ananas asbestos atlas bias canvas chaos charles christmas clothes cosmos gas glasses goods "
    "hermes james jeans lens mercedes molasses news pajamas pancreas pants rhinoceros series shorts species "
    "thermos pyjamas always perhaps towards overseas does this"
)
"""Words ending in s that name one thing, or that mean something else without the s."""
ENDS_IN_IE = _set(
    "birdie brownie budgie calorie collie cookie cowrie genie hoodie magpie movie necktie pixie prairie rookie "
    "selfie smoothie veggie zombie"
)
ENDS_IN_E = _set(
    "ache avalanche axe brioche cache cause cliche creche excuse fuse headache moustache muse mustache niche "
    "pickaxe quiche toothache"
)
ENDS_IN_OE = _set("canoe floe foe hoe oboe shoe horseshoe toe mistletoe")

AMERICAN = _table(
    "grey:gray tyre:tire aeroplane:airplane yoghurt:yogurt doughnut:donut moustache:mustache pyjamas:pajamas "
    "mould:mold mouldy:moldy plough:plow centre:center theatre:theater fibre:fiber litre:liter metre:meter "
    "sabre:saber catalogue:catalog jewellery:jewelry traveller:traveler aluminium:aluminum sulphur:sulfur "
    "omelette:omelet chilli:chili kerb:curb axe:ax whisky:whiskey programme:program cosy:cozy anaemia:anemia "
    "leukaemia:leukemia oedema:edema oesophagus:esophagus foetus:fetus foetal:fetal diarrhoea:diarrhea"
)
OUR = re.compile(
    r"^((?:un|dis|multi)?(?:arb|arm|behavi|col|fav|flav|harb|hon|hum|lab|neighb|od|parl|rum|sav|tum|vap))our"
)
"""Stems whose -our becomes -or in American spelling; never `four`, `hour` or `flour`."""
HAEM = re.compile(r"^haem(?=[ao])")
NUMBERS = _table("zero:0 one:1 two:2 three:3 four:4 five:5 six:6 seven:7 eight:8 nine:9 ten:10")


@lru_cache(maxsize=65536)
def plain(name: str) -> str:
    """Return the name in lower case with single spaces, in singular and American spelling; digits stay.

    A name without letters, digits or symbols (`---`) stays as it is, so that none becomes empty.
    """
    text = CAMEL.sub(" ", unicodedata.normalize("NFKC", name))
    for _ in range(8):  # case and Unicode forms need a second pass for a few letters
        before, text = text, _plain_once(text)
        if text == before:
            break
    return text or _folded(name).strip() or name


@lru_cache(maxsize=65536)
def joined(name: str) -> str:
    """Return the plain form without spaces, since `cup cake` and `cupcake` are the same; `1 0` and `10` differ."""
    return BETWEEN_DIGITS.sub("_", plain(name)).replace(" ", "")


def _plain_once(text: str) -> str:
    text = APOSTROPHES.sub("", _folded(text)).replace("&", " and ")
    words = "".join(_spaced(piece) for piece in WORD.findall(text.replace("\n", " "))).split()
    if len(words) > 1 and words[0] in ARTICLES and words[1].isalpha() and len(words[1]) > 1:
        words = words[1:]  # "a dog" is "dog", but "a 4" and "a b" may be names
    return " ".join(_word(word) for word in words)


def _folded(text: str) -> str:
    """Return the text in one case, without accents, with one code per letter."""
    bare = ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFKC", bare).casefold()


def _spaced(piece: str) -> str:
    """Return words and numbers unchanged, symbols such as + and % between spaces, punctuation as a space."""
    if len(piece) > 1 or piece.isalnum() or unicodedata.category(piece)[0] == "M":
        return piece
    return f" {piece} " if piece in "#%" or unicodedata.category(piece)[0] == "S" else " "


def _word(word: str) -> str:
    if not (word.isascii() and word.isalpha()):
        return word
    word = singular(word)
    word = AMERICAN.get(word, word)
    word = HAEM.sub("hem", OUR.sub(r"\1or", word))
    return NUMBERS.get(word, word)


def singular(word: str) -> str:
    """Return the singular of a lower-case English noun if a rule or table gives it, else the word."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) < 4 or not word.endswith("s") or word in KEPT or word.endswith(("ss", "us", "is", "ics")):
        return word
    if not word.endswith("es") or word[:-1] in ENDS_IN_IE | ENDS_IN_E | ENDS_IN_OE:
        return word[:-1]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("shes", "ches", "xes", "sses", "zzes", "oes")):
        return word[:-2]
    if word.endswith("uses") and not word.endswith("ouses"):
        return word[:-2]
    return word[:-1]


# The classes of several tasks as one list, each class once by its plain name.

Places = NDArray[np.int64]
"""Index of each class of a part among the classes of the whole."""


@dataclass(frozen=True)
class Union:
    """The classes of several parts, without repeating equal plain names."""

    classes: tuple[str, ...]
    places: tuple[Places, ...]

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Mask of the classes that more than one part has."""
        counts = np.bincount(np.concatenate(self.places), minlength=len(self.classes))
        return counts > 1


def union(parts: Sequence[Sequence[str]]) -> Union:
    """Number the classes of all parts in order of first appearance, each in its most frequent spelling.

    Where a part has two classes with one plain form (`a` and `A`), such names are compared as they are.
    """
    ambiguous = {form for names in parts for form, n in Counter(map(joined, names)).items() if n > 1}
    spellings: dict[tuple[str, bool], Counter[str]] = {}
    places = []
    for names in parts:
        keys = [(name, True) if joined(name) in ambiguous else (joined(name), False) for name in names]
        for key, name in zip(keys, names, strict=True):
            spellings.setdefault(key, Counter())[name] += 1
        numbers = {key: number for number, key in enumerate(spellings)}
        places.append(np.array([numbers[key] for key in keys], dtype=np.int64))
    classes = tuple(min(spelled, key=lambda name: (-spelled[name], name)) for spelled in spellings.values())
    return Union(classes, tuple(places))


Scores = NDArray[np.float64]
NEGATIONS = frozenset({"no", "non", "not", "without", "never"})
SIDES = frozenset({"left", "right"})
SLACK = 1e-4
"""Tolerance that exceeds the errors of single precision."""


@dataclass(frozen=True)
class Match:
    """A class of one task and a similar class of another."""

    learned: str
    target: str
    score: float
    learned_task: str = ""
    target_task: str = ""


@dataclass(frozen=True)
class Encoded:
    """A task's class names, prepared for comparison."""

    classes: tuple[str, ...]
    keys: tuple[str, ...]
    marks: tuple[tuple[str, ...], ...]
    rows: Rows

    @classmethod
    def of(cls, classes: Sequence[str], encoder: Encoder) -> Encoded:
        forms = [plain(name) for name in classes]
        keys, marks = tuple(map(joined, classes)), tuple(map(distinguishing_words, forms))
        return cls(tuple(classes), keys, marks, encoder.encode(forms))


@lru_cache(maxsize=65536)
def distinguishing_words(form: str) -> tuple[str, ...]:
    """Return the words of a plain form that change its meaning but hardly its encoding.

    `speed limit 30` and `speed limit 50`, `letter a` and `letter b`, `mask` and `no mask`, `turn left` and `turn
    right` are similar to every sentence encoder. Such words must agree, or the names do not match.
    """
    words = form.split()
    article = {"a"} if words[-1:] != ["a"] else set()
    marks = {word for word in words if len(word) == 1 or word in SIDES or any(map(str.isdigit, word))} - article
    return (*sorted(marks), *(["not"] if NEGATIONS & set(words) else []))


def similarity(learned: Encoded, target: Encoded) -> Scores:
    """Return the similarity of all pairs: 1 where plain forms are equal, 0 where distinguishing words differ."""
    if not learned.classes or not target.classes:
        return np.zeros((len(learned.classes), len(target.classes)))
    scores = np.clip(learned.rows.astype(np.float64) @ target.rows.astype(np.float64).T, 0.0, 1.0)
    for i, (key, marks) in enumerate(zip(learned.keys, learned.marks, strict=True)):
        scores[i, [marks != other for other in target.marks]] = 0.0
        scores[i, [key == other for other in target.keys]] = 1.0
    return scores


def match_classes(
    learned: Sequence[str], target: Sequence[str], encoder: Encoder, threshold: float | None = None
) -> list[Match]:
    """Return the pairs of two tasks' classes at or above the threshold, the most similar first."""
    return match_tasks({"": learned}, {"": target}, encoder, threshold)


def match_tasks(
    learned: Mapping[str, Sequence[str]],
    target: Mapping[str, Sequence[str]],
    encoder: Encoder,
    threshold: float | None = None,
) -> list[Match]:
    """Return the matches between two sides of several tasks each, as `match_classes` does for two tasks."""
    least = checked(encoder, threshold)
    ready = [{task: Encoded.of(names, encoder) for task, names in side.items()} for side in (learned, target)]
    matches = [
        Match(a.classes[i], b.classes[j], score, first, second)
        for first, a in ready[0].items()
        for second, b in ready[1].items()
        for i, j, score in pairs(a, b, least)
    ]
    return sorted(matches, key=surest_first)


def pairs(learned: Encoded, target: Encoded, threshold: float) -> list[tuple[int, int, float]]:
    """Return indices and scores of all pairs at or above the threshold.

    A product of all rows finds the candidates; each is then scored on its own, so that a score does not depend on
    what else is compared, not even in its last bit.
    """
    if not learned.classes or not target.classes:
        return []
    near = np.argwhere(learned.rows @ target.rows.T >= threshold - SLACK)
    places = {(int(i), int(j)) for i, j in near}
    by_key: dict[str, list[int]] = {}
    for j, key in enumerate(target.keys):
        by_key.setdefault(key, []).append(j)
    places |= {(i, j) for i, key in enumerate(learned.keys) for j in by_key.get(key, ())}
    scored = [(i, j, _score(learned, i, target, j)) for i, j in sorted(places)]
    return [pair for pair in scored if pair[2] >= threshold]


def _score(learned: Encoded, i: int, target: Encoded, j: int) -> float:
    if learned.keys[i] == target.keys[j]:
        return 1.0
    if learned.marks[i] != target.marks[j]:
        return 0.0
    cosine = float(np.dot(learned.rows[i].astype(np.float64), target.rows[j].astype(np.float64)))
    return min(max(cosine, 0.0), 1.0)


def checked(encoder: Encoder, threshold: float | None) -> float:
    """Return the threshold, by default the encoder's; raise `DataError` unless it is in (0, 1]."""
    threshold = encoder.threshold if threshold is None else threshold
    if not 0 < threshold <= 1:
        raise DataError(f"the threshold is {threshold:g}; expected a similarity above 0 and at most 1")
    return threshold


def surest_first(match: Match) -> tuple[float, str, str, str, str]:
    return -match.score, match.learned_task, match.learned, match.target_task, match.target
