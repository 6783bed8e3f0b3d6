"""Names that code, cards, settings and the command must agree on, each written once, and groups of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnchorKind = Literal["sketch", "gmmc", "maha"]
"""Each is a file of `anchors/`; its name here registers it."""
Representation = Literal["features", "sqrt-features", "descriptor"]
AdaptMode = Literal["none", "auto", "always"]
AdaptationKind = Literal["biases", "head2toe", "reprogramming"]
Network = Literal["machine", "lan", "fixed", "client"]
Trust = Literal["listed", "open"]
Support = Literal["plain", "encoder", "never"]
MatchBy = Literal["name", "sight", "both"]
Refining = Literal["prior", "two", "infinity"]
"""How a composed head goes on with images: by its prior, or as the paper does, with rows of one 2- or ∞-norm."""
WarmMode = Literal["auto", "never"]
WarmForm = Literal["prior", "infinity", "two"]
"""How old rows help: as the centre of a prior, or as the start of epochs in the paper's two norms."""


@dataclass(frozen=True)
class Adaptation:
    """How a task may change the backbone for its own images.

    >>> Adaptation("always", "head2toe", epochs=5)
    Adaptation(mode='always', kind='head2toe', layers='all', epochs=5, mirrored=False, from_plain_head=False)
    """

    mode: AdaptMode = "auto"
    """`auto` keeps what was trained where validation images say that it pays, `always` in any case."""
    kind: AdaptationKind = "biases"
    """What is trained: biases, biases with a head on the channels that they single out (`head2toe`), or a pattern
    on the input (`reprogramming`)."""
    layers: str = "all"
    """Layers behind which biases act: `all`, `last-half`, `last-10`, `after-norm` (those next to a norm), or names
    with commas between, as `skillmesh backbone` lists them."""
    epochs: int | None = None
    """Passes over the training images; `None`: as many as were found to pay."""
    mirrored: bool = False
    """Whether images are mirrored at random while training."""
    from_plain_head: bool = False
    """Whether training begins with the head without adaptation instead of a random one."""


@dataclass(frozen=True)
class WarmStart:
    """How a new head may start from rows of classes that the agent knows by name.

    >>> WarmStart("never")
    WarmStart(mode='never', form='prior')
    """

    mode: WarmMode = "auto"
    """`auto` takes known rows where held-back images say that this pays; `never` takes none."""
    form: WarmForm = "prior"
    """Rows become the centre of a `prior`, or, as in the paper, the start of epochs that keep each row's
    `infinity` or `two` norm."""
