"""Nodes as separate processes on one machine: they find each other, share, and all end up knowing everything."""

from __future__ import annotations

import pytest
from meshes import Mesh, eventually

pytestmark = pytest.mark.long


def test_every_node_receives_what_any_node_learned(mesh: Mesh) -> None:
    nodes = [mesh.serve(teacher) for teacher in range(3)]
    eventually(lambda: mesh.converged(tasks=6))
    assert all(len(node.live()) == 6 for node in nodes)
