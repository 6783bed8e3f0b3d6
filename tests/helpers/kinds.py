"""The kinds of anchors as parameters of tests that fit them."""

from __future__ import annotations

import pytest

from skillmesh.anchors import KINDS

FITTED = [
    pytest.param(name, marks=[pytest.mark.sklearn] * (kind.fitted_with is not None))
    for name, kind in KINDS.items()
]
"""All kinds; one that needs a package to be fitted is skipped without it."""
