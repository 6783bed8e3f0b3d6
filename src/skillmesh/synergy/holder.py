"""The part of an agent's interface that synergy and evaluation use, so that neither imports the agent itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from skillmesh.answering.answering import Mapper
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.config import AgentConfig
from skillmesh.data.inputs import AnyImage
from skillmesh.learning.head import Head
from skillmesh.module import Identity, Module
from skillmesh.module.notice import MergedTask
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.arrays import Floats
from skillmesh.store.bank import Bank
from skillmesh.store.ledger import Ledger
from skillmesh.synergy.links import TaskMerger


class Holder(Protocol):
    """An object that holds modules and answers from them, such as an agent."""

    home: Path
    config: AgentConfig
    identity: Identity
    bank: Bank
    ledger: Ledger

    @property
    def merger(self) -> TaskMerger: ...

    @property
    def backbone(self) -> Backbone: ...

    @property
    def prior(self) -> Prior: ...

    @property
    def teachers(self) -> Teachers: ...

    def find(self, task: str) -> Module: ...

    def merged(self) -> list[MergedTask]: ...

    def mapper(self) -> tuple[list[Module], Mapper]: ...

    def head(self, module: Module) -> Head: ...

    def seen_by(self, module: Module, x: Floats, images: Sequence[AnyImage]) -> Floats: ...
