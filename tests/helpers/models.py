"""Networks with random weights, and a way to tell two apart."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from skillmesh.backbone.building import import_timm

timm = import_timm()


def random_model(name: str) -> torch.nn.Module:
    """Return a network with random weights and batch norms that are not the identity."""
    torch.manual_seed(0)
    model = timm.create_model(name)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def weights_hash(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
