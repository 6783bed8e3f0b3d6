"""Adapting the backbone to a task: what is tried, what it gave, and whether validation images say that it pays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.costs import spend
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Fit, Labels, best_temperature, fit_head, losses
from skillmesh.learning.pattern import Patterned, stored
from skillmesh.names import Adaptation
from skillmesh.progress import Advance
from skillmesh.tensors import Floats, Tensors

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.config import AgentConfig
    from skillmesh.data.folder import ImageFile
    from skillmesh.learning.training import Examples, Space, Trained

SHARES = (0.5, 0.25, 0.125)
"""Of the biases: fewer and fewer, as long as validation does not miss the others."""
MISSED = 0.01
"""The validation loss may be so much larger without the others."""
ASKED = 128
"""Validation images that are asked for that; each question is a pass over them."""
SURE = 1.645
"""Standard errors by which the mean loss must fall: one in twenty that gain nothing would be kept."""


@dataclass(frozen=True)
class Material:
    """The readable training images, then the validation images, and a head without adaptation."""

    files: tuple[list[ImageFile], list[ImageFile]]
    x: tuple[Floats, Floats]
    labels: tuple[Labels, Labels]
    plain: Fit

    @property
    def classes(self) -> int:
        return len(self.plain.head.bias)


@dataclass(frozen=True)
class Adapted:
    """A head over an adapted network, and what the trial gave."""

    fit: Fit
    tensors: Tensors
    facts: dict[str, Any]
    """The card's fields that say what the tensors are."""
    better: bool
    """Whether validation images say so, beyond noise."""
    words: str


def adapt(
    kind: Adaptation,
    backbone: Backbone,
    config: AgentConfig,
    material: Material,
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
    layers: str = "all",
) -> Adapted:
    """Train an adaptation and a head for it, and compare with the plain head; biases act behind `layers`."""
    return _Adapting(backbone, config, material, checkpoint, training, layers).run(kind)


class _Adapting:
    def __init__(
        self,
        backbone: Backbone,
        config: AgentConfig,
        material: Material,
        checkpoint: Path | None,
        training: Callable[[int], Advance | None],
        layers: str,
    ) -> None:
        self._backbone, self._config, self._material = backbone, config, material
        self._checkpoint, self._training, self._layers = checkpoint, training, layers

    def run(self, kind: Adaptation) -> Adapted:
        if kind == "reprogramming":
            return self._reprogrammed()
        trained = self._biases()
        if not trained.values.any() or not np.isfinite(trained.values).all():  # there is nothing to send
            return self._compared(kind, self._material.plain, self._material.x[1], {}, {}, trained)
        biases = self._pruned(trained)
        tensors = biases.tensors()
        facts = {"biases": (len(biases.added), len(tensors["bias.value"]))}
        if kind == "head2toe":
            return self._toes(biases, tensors, facts, trained)
        backbone, (as_is, compact) = self._backbone, (self._config.representation, self._config.compact)
        seen = [backbone.biased(part, biases.added, as_is, compact) for part in self._material.files]
        return self._compared("biases", self._fitted(seen), seen[1], tensors, facts, trained)

    def _biases(self) -> Trained:
        from skillmesh.learning.biases import OURS, train_biases

        told = self._told(OURS.epochs)
        before, network = self._material.plain.before, self._backbone.network
        parts, layers = self._examples(), self._layers
        return train_biases(network, self._space(), parts, before, layers, OURS, self._checkpoint, told)

    def _pruned(self, trained: Trained) -> Biases:
        """Leave out the smallest biases, as many as validation does not miss; as every student will read them."""
        enough = _stored(trained.values)
        allowed = self._loss(enough, trained) * (1 + MISSED)
        for share in SHARES:
            fewer = _stored(np.where(_largest(trained.values, share), trained.values, 0))
            if self._loss(fewer, trained) > allowed:
                break
            enough = fewer
        return enough

    def _loss(self, biases: Biases, trained: Trained) -> float:
        config, (_, files), (_, labels) = self._config, self._material.files, self._material.labels
        asked = np.unique(np.linspace(0, len(files) - 1, ASKED).astype(int))
        some = [files[index] for index in asked]
        seen = self._backbone.biased(some, biases.added, config.representation, config.compact)
        return float(losses(trained.head.logits(seen), labels[asked]).mean())

    def _reprogrammed(self) -> Adapted:
        from skillmesh.learning.reprogramming import SETTINGS, train_pattern

        told = self._told(SETTINGS.epochs)
        before, network = self._material.plain.before, self._backbone.network
        trained = train_pattern(
            network, self._space(), self._examples(), before, checkpoint=self._checkpoint, progress=told
        )
        pattern = stored(trained.values)
        seen = [
            self._backbone.changed(
                [Patterned(file, pattern) for file in part], self._config.representation, self._config.compact
            )
            for part in self._material.files
        ]
        facts = {"pattern": len(pattern)}
        return self._compared("reprogramming", self._fitted(seen), seen[1], {"pattern": pattern}, facts, trained)

    def _toes(self, biases: Biases, tensors: Tensors, facts: dict[str, Any], trained: Trained) -> Adapted:
        from skillmesh.backbone.toes import choose_toes
        from skillmesh.learning.head2toe import fit_by_adam

        network, (train, val) = self._backbone.network, self._material.labels
        toes = choose_toes(biases.added)
        seen = [self._backbone.toes(part, biases.added) for part in self._material.files]
        head, costs = fit_by_adam(seen[0], train, seen[1], val, self._material.classes, network.device)
        trained.costs.add("head", costs.total)
        logits = head.logits(seen[1])
        accuracy = float(np.mean(logits.argmax(axis=1) == val))
        fit = Fit(head, 0.0, best_temperature(logits, val), accuracy, head)
        facts = facts | {"toes": (len(toes.channels), toes.grid, network.features)}
        return self._compared("head2toe", fit, seen[1], tensors, facts, trained)

    def _fitted(self, seen: list[Floats]) -> Fit:
        train, val = self._material.labels
        return fit_head(seen[0], train, seen[1], val, self._material.classes)

    def _compared(
        self, name: str, fit: Fit, seen: Floats, tensors: Tensors, facts: dict[str, Any], trained: Trained
    ) -> Adapted:
        plain, labels = self._material.plain, self._material.labels[1]
        for what, macs in trained.costs.spent.items():
            spend(what, macs)
        words = (
            f"{name}: {plain.accuracy or 0:.1%} → {fit.accuracy or 0:.1%} of {len(labels)} validation images, "
            f"{trained.costs.total / 1e9:,.0f} GMACs"
        )
        return Adapted(fit, tensors, facts, _better(plain, self._material.x[1], fit, seen, labels), words)

    def _space(self) -> Space:
        from skillmesh.learning.training import Space

        device, config = self._backbone.network.device, self._config
        return Space(self._backbone.calibration, config.representation, config.compact, device)

    def _examples(self) -> tuple[Examples, Examples]:
        from skillmesh.learning.training import Examples

        size = self._backbone.network.size
        train, val = (
            Examples(np.stack([file.pixels(file.content(), size) for file in files]), labels)
            for files, labels in zip(self._material.files, self._material.labels, strict=True)
        )
        return train, val

    def _told(self, epochs: int) -> Advance:
        return self._training(epochs * len(self._material.labels[0])) or (lambda _: None)


def _stored(values: Floats) -> Biases:
    return Biases.read(Biases(values).tensors(), len(values))


def _largest(values: Floats, share: float) -> NDArray[np.bool_]:
    count = max(1, round(share * np.count_nonzero(values)))
    kept = np.zeros(len(values), dtype=bool)
    kept[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return kept


def _better(plain: Fit, x: Floats, adapted: Fit, seen: Floats, labels: Labels) -> bool:
    """Compare image by image, with the heads that have not been fitted to them."""
    before, after = (
        losses(fit.before.logits(view) / fit.temperature, labels) for fit, view in ((plain, x), (adapted, seen))
    )
    gain = before - after
    if len(gain) < 2:
        return False
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    # Where all are right before and after, a smaller loss is a surer head on images like these, not a better one.
    more_right = (adapted.accuracy or 0.0) > (plain.accuracy or 0.0)
    return more_right and float(gain.mean()) > SURE * error
