"""The `.skill` file of a task module: its format, signatures, and a reader that trusts nothing.

`docs/appendix/skill-format.md` specifies the bytes.
"""

from skillmesh.module.card import Card, now
from skillmesh.module.format import (
    MAX_FILE,
    MAX_HEADER,
    MAX_TENSORS,
    Module,
    SpecsFor,
    check_finite,
    check_tensors,
    content_id,
    in_order,
    module_id,
    read,
    read_card,
    read_file,
    write,
)
from skillmesh.module.identity import Identity, is_name, verify

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
    "read_card",
    "read_file",
    "verify",
    "write",
]
