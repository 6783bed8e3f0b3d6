"""The `.skill` file: what a task module is on disk, who signed it, and a reader that trusts nothing.

`docs/skill-format.md` specifies the bytes.
"""

from skillmesh.module.card import Card, now
from skillmesh.module.format import (
    MAX_FILE,
    MAX_HEADER,
    MAX_TENSORS,
    SpecsFor,
    content_id,
    module_id,
    read,
    write,
)
from skillmesh.module.identity import Identity, is_name, verify
from skillmesh.module.module import Module, in_order, read_file
from skillmesh.module.validate import check_finite, check_tensors

__all__ = [
    "MAX_FILE",
    "MAX_HEADER",
    "MAX_TENSORS",
    "Card",
    "Identity",
    "Module",
    "SpecsFor",
    "check_finite",
    "check_tensors",
    "content_id",
    "in_order",
    "is_name",
    "module_id",
    "now",
    "read",
    "read_file",
    "verify",
    "write",
]
