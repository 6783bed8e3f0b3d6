"""Register every baseline by name. This module does not import torch.

Each settings class is a kind of method: a method file may set `kind = "ewc"` and change any of its settings.
"""

from __future__ import annotations

from typing import Any

from skillmesh_challenge.baselines.settings import Frozen, TrainedSettings
from skillmesh_challenge.baselines.settings.frozen import Fecam, NearestMean, RanPac, Slda
from skillmesh_challenge.baselines.settings.isolating import ParallelSupsup, Psp, Supsup
from skillmesh_challenge.baselines.settings.plain import Er, Joint, Lwf, Naive
from skillmesh_challenge.baselines.settings.regularised import Ewc, EwcOnline, Mas, Si
from skillmesh_challenge.methods import register, register_kind

BOUNDS = (Naive, Joint)
SEQUENTIAL = (Ewc, EwcOnline, Si, Mas, Lwf, Er, Psp, Supsup, ParallelSupsup)
TRAINED: tuple[type[TrainedSettings], ...] = (*BOUNDS, *SEQUENTIAL)
FROZEN: tuple[type[Frozen], ...] = (NearestMean, Slda, RanPac, Fecam)

for settings in (*TRAINED, *FROZEN):
    register_kind(settings.kind, settings)
    register(settings(settings.kind))

# Our variant with steady steps, at strengths for which the published plain steps may be too long.
for regularised, strength in ((Ewc, 1e4), (EwcOnline, 1e4), (Si, 1e3), (Mas, 1.0)):
    register(regularised(f"{regularised.kind}-steady", steps="steady", strength=strength))

# As in the paper: separate networks, trained from scratch. Ramanujan et al. keep 30 % of the weights of large
# networks. Twice the epochs of the others, because training from scratch has more to learn.
_scratch: dict[str, Any] = {"start": "random", "norms": "trained", "epochs": 12}
register(Psp("psp-resnet18", backbone="resnet18", superpose="weights", **_scratch))
register(Supsup("supsup-resnet50", backbone="resnet50", share=0.3, rate=0.1, **_scratch))

for frozen in FROZEN:
    # The descriptor is already square-rooted and standardised.
    changes: dict[str, Any] = {"power": 1.0} if frozen is Fecam else {}
    register(frozen(f"{frozen.kind}-descriptor", representation="descriptor", **changes))
