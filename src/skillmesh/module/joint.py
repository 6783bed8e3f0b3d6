"""A task whose parts several teachers taught, as one module in memory. It has no file and is never sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from skillmesh.module.module import Module
from skillmesh.module.notice import Link


@dataclass(frozen=True)
class MergedTask(Module):
    """What a link makes of its parts: read like any module, but nothing in it is rounded.

    Its card names the task as the link does, and all teachers; `size` is that of the parts.
    """

    link: Link = field(compare=False)
    parts: tuple[Module, ...] = field(compare=False, repr=False)


def parts_of(module: Module) -> tuple[Module, ...]:
    """The modules that a task consists of: several, or itself."""
    return module.parts if isinstance(module, MergedTask) else (module,)
