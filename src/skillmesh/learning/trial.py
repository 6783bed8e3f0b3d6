"""Try an adaptation of the backbone to a task, and decide on validation images whether to keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.backbone.spec import choose_toes, chosen
from skillmesh.common.choices import Adaptation
from skillmesh.data.inputs import read_pixels
from skillmesh.errors import AgentError, DataError
from skillmesh.learning.adaptation import Biases, Patterned, room_for, stored
from skillmesh.learning.head import Fit, Labels, best_temperature, fit_head, losses
from skillmesh.numerics.arrays import Floats, Tensors, counted
from skillmesh.numerics.process import Advance, one_thread

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.backbone.network import Network
    from skillmesh.common.config import AgentConfig
    from skillmesh.data.inputs import AnyImage
    from skillmesh.learning.training import Examples, Space, Trained, TrainingSettings

SHARES = (0.5, 0.25, 0.125)
"""Shares of the biases to try keeping, as long as leaving out the others does not raise the validation loss."""
MISSED = 0.01
"""Relative increase of the validation loss that leaving out biases may cause."""
ASKED = 128
"""Largest number of validation images for that test; each share tried is a pass over them."""
SURE = 0.95
"""Confidence of the one-sided t-test on the mean loss: it would keep 1 in 20 adaptations that gain nothing.

The validation images have also chosen the epoch and the biases left out, so it is somewhat more than 1 in 20."""


def refuse_impossible(adaptation: Adaptation, network: Network, validation_images: int = 1) -> None:
    """Raise an error, before any image is read, if the network or the task does not allow this adaptation."""
    from skillmesh.backbone.network import require_torch

    require_torch("training an adaptation")
    if adaptation.mode == "always" and not validation_images:
        raise DataError(
            "the task has no validation images; training an adaptation needs some to decide when to stop; add "
            "images, or learn without adaptation"
        )
    if adaptation.kind == "reprogramming":
        if adaptation.layers != "all":
            raise AgentError(
                f"the layers {adaptation.layers!r} are chosen, but reprogramming trains none; leave out the layers"
            )
        return
    chosen(adaptation.layers, network.places)
    if adaptation.kind == "head2toe":
        _refuse_layers_of_windows(network)
    if not room_for(network.bias_count):
        raise AgentError(
            f"the network has {network.bias_count:,} channels, too many to store biases for in a module; "
            "choose a smaller network, or reprogramming"
        )


def _refuse_layers_of_windows(network: Network) -> None:
    """Raise `BackboneError` if a layer cannot be an input of a Head2Toe head: training may choose any of them."""
    none = np.zeros(network.bias_count, dtype=np.float32)
    images = np.zeros((2, network.size, network.size, 3), dtype=np.uint8)
    network.toe_features(images, none, choose_toes(none, share=1))


def _training_settings(adaptation: Adaptation, usual: TrainingSettings) -> TrainingSettings:
    epochs = adaptation.epochs or usual.epochs
    return replace(usual, epochs=epochs, flips=adaptation.mirrored, warm=adaptation.from_plain_head)


@dataclass(frozen=True)
class Material:
    """Readable training and validation images (in this order), and a head without adaptation."""

    files: tuple[list[AnyImage], list[AnyImage]]
    x: tuple[Floats, Floats]
    labels: tuple[Labels, Labels]
    plain: Fit

    @property
    def classes(self) -> int:
        return len(self.plain.head.bias)


@dataclass(frozen=True)
class Adapted:
    """A head on an adapted network, and the result of the trial."""

    fit: Fit
    tensors: Tensors
    facts: dict[str, Any]
    """The card's fields that describe the tensors."""
    better: bool
    """Whether it is better than the plain head on validation images, beyond noise."""
    words: str
    inputs: tuple[Floats, Floats]
    """The head's inputs for the training and the validation images."""


def try_adapting(
    adaptation: Adaptation,
    backbone: Backbone,
    config: AgentConfig,
    material: Material,
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
) -> tuple[Adapted, bool]:
    """Adapt, and return whether to keep the result: always, or if it is better on validation images."""
    adapted = adapt(adaptation, backbone, config, material, checkpoint, training)
    kept = bool(adapted.tensors) and (adaptation.mode == "always" or adapted.better)
    return replace(adapted, words=f"{adapted.words}; {'kept' if kept else 'not kept'}"), kept


def adapt(
    adaptation: Adaptation,
    backbone: Backbone,
    config: AgentConfig,
    material: Material,
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
) -> Adapted:
    """Train an adaptation and a head for it, and compare with the plain head."""
    with counted() as costs:
        adapted = _Trial(adaptation, backbone, config, material, checkpoint, training).run()
    return replace(adapted, words=f"{adapted.words}, {costs.total / 1e9:,.0f} GMACs")


class _Trial:
    def __init__(
        self,
        adaptation: Adaptation,
        backbone: Backbone,
        config: AgentConfig,
        material: Material,
        checkpoint: Path | None,
        training: Callable[[int], Advance | None],
    ) -> None:
        self._adaptation, self._backbone, self._config, self._material = adaptation, backbone, config, material
        self._checkpoint, self._training = checkpoint, training

    def run(self) -> Adapted:
        from skillmesh.backbone.network import torch_networks

        torch_networks()  # before parts that import PyTorch themselves, since it says what is wrong
        kind = self._adaptation.kind
        if kind == "reprogramming":
            return self._reprogrammed()
        trained = self._biases()
        if not trained.values.any() or not np.isfinite(trained.values).all():  # there is nothing to store
            return self._compared(kind, self._material.plain, self._material.x, {}, {})
        biases = self._pruned(trained)
        tensors = biases.tensors()
        facts = {"biases": (len(biases.added), len(tensors["bias.value"]))}
        if kind == "head2toe":
            return self._toes(biases, tensors, facts)
        backbone, (as_is, compact) = self._backbone, (self._config.representation, self._config.compact)
        seen = [backbone.biased(part, biases.added, as_is, compact) for part in self._material.files]
        return self._compared("biases", self._fitted(seen), seen, tensors, facts)

    def _biases(self) -> Trained:
        from skillmesh.learning.biases import OURS, train_biases

        settings, layers = _training_settings(self._adaptation, OURS), self._adaptation.layers
        progress = self._progress(settings.epochs)
        before, network = self._material.plain.before, self._backbone.torch_network
        parts = self._examples()
        return train_biases(network, self._space(), parts, before, layers, settings, self._checkpoint, progress)

    def _pruned(self, trained: Trained) -> Biases:
        """Return the biases as students will read them, without the small ones that validation does not need."""
        kept = _stored(trained.values)
        allowed = self._loss(kept, trained) * (1 + MISSED)
        for share in SHARES:
            fewer = _stored(np.where(_largest(trained.values, share), trained.values, 0))
            if self._loss(fewer, trained) > allowed:
                break
            kept = fewer
        return kept

    def _loss(self, biases: Biases, trained: Trained) -> float:
        config, (_, files), (_, labels) = self._config, self._material.files, self._material.labels
        sample = np.unique(np.linspace(0, len(files) - 1, ASKED).astype(int))
        images = [files[index] for index in sample]
        seen = self._backbone.biased(images, biases.added, config.representation, config.compact)
        return float(losses(trained.head.logits(seen), labels[sample]).mean())

    def _reprogrammed(self) -> Adapted:
        from skillmesh.learning.reprogramming import SETTINGS, train_pattern

        settings = _training_settings(self._adaptation, SETTINGS)
        progress = self._progress(settings.epochs)
        before, network, parts = self._material.plain.before, self._backbone.torch_network, self._examples()
        trained = train_pattern(network, self._space(), parts, before, settings, self._checkpoint, progress)
        if not np.isfinite(trained.values).all():  # there is nothing to store
            return self._compared("reprogramming", self._material.plain, self._material.x, {}, {})
        pattern = stored(trained.values)
        seen = [
            self._backbone.changed(
                [Patterned(file, pattern) for file in part], self._config.representation, self._config.compact
            )
            for part in self._material.files
        ]
        facts = {"pattern": len(pattern)}
        return self._compared("reprogramming", self._fitted(seen), seen, {"pattern": pattern}, facts)

    def _toes(self, biases: Biases, tensors: Tensors, facts: dict[str, Any]) -> Adapted:
        from skillmesh.learning.head2toe import fit_by_adam

        network, (train, val) = self._backbone.torch_network, self._material.labels
        toes = choose_toes(biases.added)
        seen = [self._backbone.toes(part, biases.added) for part in self._material.files]
        head = fit_by_adam(seen[0], train, seen[1], val, self._material.classes, network.device)
        logits = head.logits(seen[1])
        accuracy = float(np.mean(logits.argmax(axis=1) == val))
        fit = Fit(head, 0.0, best_temperature(logits, val), accuracy, head)
        facts = facts | {"toes": (len(toes.channels), toes.grid, network.features)}
        return self._compared("head2toe", fit, seen, tensors, facts)

    def _fitted(self, seen: list[Floats]) -> Fit:
        train, val = self._material.labels
        damping = self._backbone.calibration.prior(self._config.representation, self._config.compact).damping
        with one_thread():  # as for the plain head
            return fit_head(seen[0], train, seen[1], val, self._material.classes, damping=damping)

    def _compared(
        self, name: str, fit: Fit, seen: Sequence[Floats], tensors: Tensors, facts: dict[str, Any]
    ) -> Adapted:
        plain, labels = self._material.plain, self._material.labels[1]
        words = f"{name}: {plain.accuracy or 0:.1%} → {fit.accuracy or 0:.1%} of {len(labels)} validation images"
        better = _better(plain, self._material.x[1], fit, seen[1], labels)
        return Adapted(fit, tensors, facts, better, words, (seen[0], seen[1]))

    def _space(self) -> Space:
        from skillmesh.learning.training import Space

        device, config = self._backbone.torch_network.device, self._config
        return Space(self._backbone.calibration, config.representation, config.compact, device)

    def _examples(self) -> tuple[Examples, Examples]:
        from skillmesh.learning.training import Examples

        size = self._backbone.network.size
        train, val = (
            Examples(np.stack([read_pixels(file, size) for file in files]), labels)
            for files, labels in zip(self._material.files, self._material.labels, strict=True)
        )
        return train, val

    def _progress(self, epochs: int) -> Advance:
        return self._training(epochs * len(self._material.labels[0])) or (lambda _: None)


def _stored(values: Floats) -> Biases:
    return Biases.read(Biases(values).tensors(), len(values))


def _largest(values: Floats, share: float) -> NDArray[np.bool_]:
    count = max(1, round(share * np.count_nonzero(values)))
    kept = np.zeros(len(values), dtype=bool)
    kept[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return kept


def _better(plain: Fit, x: Floats, adapted: Fit, seen: Floats, labels: Labels) -> bool:
    """Return whether the adapted head is better, image by image, with heads fitted to training images alone."""
    from scipy.stats import t

    before, after = (
        losses(fit.before.logits(view) / fit.temperature, labels) for fit, view in ((plain, x), (adapted, seen))
    )
    gain = before - after
    if len(gain) < 2:
        return False
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    # If all answers are right before and after, a smaller loss means a more confident head, not a better one.
    more_right = (adapted.accuracy or 0.0) > (plain.accuracy or 0.0)
    return more_right and float(gain.mean()) > float(t.ppf(SURE, len(gain) - 1)) * error
