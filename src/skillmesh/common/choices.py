"""Names that code, cards, settings and the command must agree on, each list written once."""

from __future__ import annotations

from typing import Literal

AnchorKind = Literal["sketch", "gmmc", "maha"]
Representation = Literal["features", "sqrt-features", "descriptor"]
BiasMode = Literal["auto", "always", "never"]
Adaptation = Literal["biases", "head2toe", "reprogramming"]
Network = Literal["machine", "lan", "fixed", "client"]
Trust = Literal["listed", "open"]
Support = Literal["plain", "encoder", "never"]
MatchBy = Literal["name", "sight", "both"]
Refining = Literal["prior", "two", "infinity"]
"""How a composed head goes on with images: by its prior, or as the paper does, with rows of one 2- or ∞-norm."""
WarmMode = Literal["auto", "never"]
WarmForm = Literal["prior", "infinity", "two"]
"""How old rows help: as the centre of a prior, or as the start of epochs in the paper's two norms."""
