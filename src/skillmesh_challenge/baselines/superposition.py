"""Many linear maps stored in one sum: each is bound with its own key, and read back with that key.

A key gives each input of a map a sign (binary keys), or takes inputs in pairs as complex numbers and rotates each
pair by its own angle (complex keys). Both are rotations R, and a real map W is stored as W·Rᵀ. Reading a sum of K
maps with the key k gives W_k + Σ_{j≠k} W_j·R_jᵀ·R_k: the map itself, plus the others with scrambled inputs.

Size of the disturbance: R_jᵀ·R_k is again a sign or an angle, uniform and independent for each input. So for fixed
maps and inputs x, over random keys, each output's error has mean 0 and the variance

    binary   Σ_{j≠k} Σ_i w_ji² x_i²             (a sign's square is 1, those of two inputs are independent)
    complex  Σ_{j≠k} Σ_p |w_jp|² |x_p|² / 2     (pairs p; the mean square of a cosine is one half)

Weights of variance σ² give (K−1)·σ²·|x|² for both, however similar the maps are. Without keys, similar maps (as of
tasks that begin with the same weights) would disturb up to K−1 times as much. In a layer that sums over few inputs
little cancels.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

KeyKind = Literal["binary", "complex"]


class Superposition(nn.Module):
    """A parametrization of a layer's weight that stores many tasks' weights and reads one with its key.

    The inputs of a kernel are all values that one output sums over, channels × height × width. As in Cheung et al.
    2019, keys multiply the kernel, which is cheaper than the images. Groups of a convolution have their own keys.
    """

    key: torch.Tensor
    start: torch.Tensor | None

    def __init__(self, layer: nn.Conv2d | nn.Linear, kind: KeyKind, beside_start: bool = False) -> None:
        """Prepare for `layer`; with `beside_start`, its current weights are added to what is read."""
        super().__init__()
        weight = layer.weight.detach()
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        self.kind, self._groups, self._repeats = kind, groups, len(weight) // groups if groups > 1 else 1
        self._fan_in = weight[0].numel()
        self.register_buffer("start", weight.clone() if beside_start else None, persistent=False)
        self.register_buffer("key", self._as_key(torch.ones(self._drawn_shape()), weight), persistent=False)

    @property
    def key_bytes(self) -> int:
        """Size of one key if it were stored: a bit per sign, two numbers of four bytes per angle."""
        signs = self._groups * (self._fan_in if self.kind == "binary" else self._fan_in % 2)
        angles = 0 if self.kind == "binary" else self._groups * (self._fan_in // 2)
        return math.ceil(signs / 8) + 8 * angles

    def draw(self, chance: torch.Generator) -> None:
        """Draw a new random key and use it."""
        shape = self._drawn_shape()
        drawn: torch.Tensor
        if self.kind == "binary":
            drawn = torch.randint(0, 2, shape, generator=chance).float().mul(2).sub(1)
        else:
            angles = 2 * math.pi * torch.rand(shape, generator=chance)
            if self._fan_in % 2:  # the last input has no partner and gets a sign
                angles[:, -1] = (angles[:, -1] > math.pi).float() * math.pi
            drawn = torch.polar(torch.ones(shape), angles)
        self.key = self._as_key(drawn, self.key)

    def clear(self) -> None:
        """Use the identity key, which changes nothing."""
        self.key = torch.ones_like(self.key)

    def unbind(self, held: torch.Tensor) -> torch.Tensor:
        return self._rotated(held, self.key)

    def bind(self, weight: torch.Tensor) -> torch.Tensor:
        return self._rotated(weight, self.key.conj().resolve_conj())

    def forward(self, held: torch.Tensor) -> torch.Tensor:
        read = self.unbind(held)
        return read if self.start is None else self.start + read

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return self.bind(weight if self.start is None else weight - self.start)

    def _drawn_shape(self) -> tuple[int, int]:
        return self._groups, self._fan_in if self.kind == "binary" else math.ceil(self._fan_in / 2)

    def _as_key(self, drawn: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the key as one row for all outputs, or one per output if groups have different keys."""
        dtype = torch.float32 if self.kind == "binary" else torch.complex64
        return drawn.to(like.device, dtype).repeat_interleave(self._repeats, dim=0)

    def _rotated(self, weight: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        if self.kind == "binary":
            return weight * key.view(-1, *weight.shape[1:])
        flat = weight.flatten(1)
        flat = nn.functional.pad(flat, (0, self._fan_in % 2)).reshape(len(flat), -1, 2)
        rotated = torch.view_as_real(torch.view_as_complex(flat.contiguous()) * key).flatten(1)
        rotated = rotated[:, : self._fan_in].reshape(weight.shape)
        return rotated.to(memory_format=torch.channels_last) if weight.dim() == 4 else rotated
