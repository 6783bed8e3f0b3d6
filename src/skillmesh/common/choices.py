"""Option values that code, cards, settings and the command line share, and groups of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnchorKind = Literal["sketch", "gmmc", "maha"]
"""Kinds of anchor. Each has a file of that name in `anchors/`; listing it here registers it."""
Representation = Literal["features", "sqrt-features", "descriptor"]
AdaptMode = Literal["none", "auto", "always"]
AdaptationKind = Literal["biases", "head2toe", "reprogramming"]
Network = Literal["machine", "lan", "fixed", "client"]
Trust = Literal["listed", "open"]
Support = Literal["plain", "encoder", "never"]
Sharing = Literal["shared", "later", "never"]
"""Whether other agents get one of the agent's own tasks; `later` and `never` both keep it here."""
MatchBy = Literal["name", "sight", "both"]
Refining = Literal["prior", "two", "infinity"]
"""How a composed head is refined with images: with a prior, or as in the paper, with the norm (2 or ∞) of
each row fixed."""
WarmMode = Literal["auto", "never"]
WarmForm = Literal["prior", "infinity", "two"]
"""How known rows are used: as the centre of a prior, or as the start of training in one of the paper's norms."""


@dataclass(frozen=True)
class Adaptation:
    """Options for adapting the backbone to one task's images.

    >>> Adaptation("always", "head2toe", epochs=5)
    Adaptation(mode='always', kind='head2toe', layers='all', epochs=5, mirrored=False, from_plain_head=False)
    """

    mode: AdaptMode = "auto"
    """`auto` keeps the adaptation if it improves on validation images; `always` keeps it in any case."""
    kind: AdaptationKind = "biases"
    """What is trained: biases, biases and a head on the channels that they select (`head2toe`), or a pattern
    added to the input (`reprogramming`)."""
    layers: str = "all"
    """Layers after which biases are added: `all`, `last-half`, `last-10`, `after-norm` (those next to a norm), or
    layer names separated by commas, as `skillmesh backbone` lists them."""
    epochs: int | None = None
    """Number of passes over the training images; `None`: the number that worked best in our tests."""
    mirrored: bool = False
    """Whether images are mirrored at random while training."""
    from_plain_head: bool = False
    """Whether training starts from the head fitted without adaptation, instead of a random one."""


NO_ADAPTATION = Adaptation("none")


@dataclass(frozen=True)
class WarmStart:
    """Options for starting a new head from rows of known classes with the same names.

    >>> WarmStart("never")
    WarmStart(mode='never', form='prior')
    """

    mode: WarmMode = "auto"
    """`auto` uses known rows if that improves accuracy on held-back images; `never` uses none."""
    form: WarmForm = "prior"
    """Known rows become the centre of a `prior` or, as in the paper, the start of training that keeps each
    row's `infinity` or `two` norm."""


MOST_VIEWS = 8
"""Largest number of views of each training image that a task can be learned from (`data/views.py`)."""
USUAL_VIEWS = 0.34
"""Share of the training images that a task is learned from as views, if nothing else is asked for."""
