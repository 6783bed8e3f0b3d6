"""A small residual network (ResNet-8) that is trained from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from skillmesh.anchors.protocol import Labels
    from skillmesh.data.images import Pixels
    from skillmesh.numerics.process import Advance
    from skillmesh_challenge.studies.difficulty import NetSettings

WIDTHS = (16, 32, 64)
SHIFT = 3
"""Largest random shift of a batch, in pixels. Images are not flipped or rotated: that would change letters."""


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inside)) + self.shortcut(x))


def small_net(classes: int) -> nn.Sequential:
    blocks = [
        Block(before, after, stride)
        for before, after, stride in zip((WIDTHS[0], *WIDTHS), WIDTHS, (1, 2, 2), strict=False)
    ]
    stem = (nn.Conv2d(3, WIDTHS[0], 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], classes))


def train_small_net(
    images: Pixels, labels: Labels, classes: int, settings: NetSettings, advance: Advance | None = None
) -> nn.Module:
    """Train for a fixed number of epochs and return the last state, without choosing the best one."""
    torch.set_num_threads(1)  # layers are too small for more, and results would depend on the number
    torch.manual_seed(settings.seed)
    net = small_net(classes).to(settings.device)
    x, y = _prepared(images, settings), torch.from_numpy(labels).to(settings.device)
    optimiser = torch.optim.AdamW(net.parameters(), settings.rate, weight_decay=settings.decay)
    steps = settings.epochs * -(-len(x) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, steps)
    net.train()
    for _ in range(settings.epochs):
        for chosen in torch.split(torch.randperm(len(x)), settings.batch):
            shift = tuple(torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist())
            loss = functional.cross_entropy(net(torch.roll(x[chosen], shift, (2, 3))), y[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            if advance is not None:
                advance(len(chosen))
    return net


def net_error(net: nn.Module, images: Pixels, labels: Labels, settings: NetSettings) -> float:
    """Return the share of images that the net classifies wrongly."""
    net.eval()
    with torch.no_grad():
        guesses = torch.cat([net(batch).argmax(1) for batch in torch.split(_prepared(images, settings), 256)])
    return float((guesses.cpu().numpy() != labels).mean())


def _prepared(images: Pixels, settings: NetSettings) -> torch.Tensor:
    x = torch.from_numpy(images).to(settings.device).permute(0, 3, 1, 2).float() / 127.5 - 1
    return x.contiguous(memory_format=torch.channels_last)
