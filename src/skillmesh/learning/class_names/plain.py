"""Bring class names to a plain form, so that spelling hides no match: `Spring_Rolls` and `spring roll` are one.

The rules are few and careful. What they do not know they leave alone, and the encoder judges it: a plural that
stays does little harm, a `glass` that becomes `glas` does.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
WORD = re.compile(r"\d+(?:\.\d+)+|\d+|[^\W\d_]+(?:[^\W_]+)?|.")
ACCENTS = re.compile("[\u0300-\u036f]")
"""Of Latin, Greek and Cyrillic letters only: in other scripts marks are vowels, and part of the word."""
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
"""Words in s that name one thing, or another thing than the word without it."""
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
"""Stems whose -our is -or in American spelling; never `four`, `hour` or `flour`."""
HAEM = re.compile(r"^haem(?=[ao])")
NUMBERS = _table("zero:0 one:1 two:2 three:3 four:4 five:5 six:6 seven:7 eight:8 nine:9 ten:10")


@lru_cache(maxsize=65536)
def plain(name: str) -> str:
    """Return the name in lower-case words with single spaces, singular, in American spelling; digits stay.

    What has no letter, digit or sign in it (`---`) stays as it is: a name never becomes empty.
    """
    text = CAMEL.sub(" ", unicodedata.normalize("NFKC", name))
    for _ in range(8):  # case and Unicode forms need a second turn for a few letters
        before, text = text, _turn(text)
        if text == before:
            break
    return text or _folded(name).strip() or name


@lru_cache(maxsize=65536)
def joined(name: str) -> str:
    """Return the plain form without spaces, since `cup cake` and `cupcake` are one; `1 0` and `10` are two."""
    return BETWEEN_DIGITS.sub("_", plain(name)).replace(" ", "")


def _turn(text: str) -> str:
    text = APOSTROPHES.sub("", _folded(text)).replace("&", " and ")
    words = "".join(_spaced(piece) for piece in WORD.findall(text.replace("\n", " "))).split()
    if len(words) > 1 and words[0] in ARTICLES and words[1].isalpha() and len(words[1]) > 1:
        words = words[1:]  # a dog is a dog; a 4 and a b may be names
    return " ".join(_word(word) for word in words)


def _folded(text: str) -> str:
    """One case, no accents, one code for one letter."""
    bare = ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFKC", bare).casefold()


def _spaced(piece: str) -> str:
    """Words and numbers as they are, signs such as + and % on their own, punctuation as a space."""
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
    """Return the singular of an English noun in lower case where a rule or table is sure of it."""
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
