"""Every baseline by name. Nothing here loads torch.

A class of settings is a kind of method: a file may say `kind = "ewc"` and change what it likes.
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

# Ours, with strengths for which the papers' own plain steps may be too long.
for pulled, strength in ((Ewc, 1e4), (EwcOnline, 1e4), (Si, 1e3), (Mas, 1.0)):
    register(pulled(f"{pulled.kind}-steady", steps="steady", strength=strength))

# As the paper has them: networks of their own, from scratch. 30 % is what Ramanujan et al. keep of large networks.
# Twice the epochs of the others: from nothing there is more to learn.
_scratch: dict[str, Any] = {"start": "random", "norms": "trained", "epochs": 12}
register(Psp("psp-resnet18", backbone="resnet18", superpose="weights", **_scratch))
register(Supsup("supsup-resnet50", backbone="resnet50", share=0.3, rate=0.1, **_scratch))

for frozen in FROZEN:
    # The descriptor is square-rooted and standardised already.
    changes: dict[str, Any] = {"power": 1.0} if frozen is Fecam else {}
    register(frozen(f"{frozen.kind}-descriptor", representation="descriptor", **changes))
