"""Randomness inside attacks, keyed by example.

A draw is a hash of (seed, stream, example id, target, step, position), computed in integer tensor operations. It is
therefore the same at any batch size, shard and world size, after a resume, on any device, and it can be captured
in a graph with ids and step as inputs.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from probmargin.core.fusing import fusable

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9

_Integers = TypeVar("_Integers", int, torch.Tensor)


class Noise(ABC):
    """Where an attack's random numbers come from: `take` follows the examples that go on."""

    @abstractmethod
    def uniform(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        """Draw float32 in [0, 1), shaped (B, *shape)."""

    @abstractmethod
    def normal(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        """Draw float32 from N(0, 1), shaped (B, *shape)."""

    def uniform_steps(self, shape: tuple[int, ...], *, stream: str, steps: range) -> torch.Tensor:
        """Draw for several steps at once, shaped (steps, B, *shape)."""
        return torch.stack([self.uniform(shape, stream=stream, step=step) for step in steps])

    @abstractmethod
    def take(self, positions: torch.Tensor) -> "Noise":
        """Return the noise of a part of the batch."""


def _mix(value: _Integers) -> _Integers:
    """A bijection of 32-bit integers with low bias, in int64 arithmetic."""
    value = (value ^ (value >> 16)) * 0x21F0AAAD & _MASK
    value = (value ^ (value >> 15)) * 0x735A2D97 & _MASK
    return value ^ (value >> 15)


def stream_key(text: str) -> int:
    """A 32-bit number for a stream's name, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def _halves(seed: int) -> tuple[int, int]:
    """The low and the high 32 bits of a seed.

    One that fits the low half is spread over both: alone it would only hand one example's noise to another.
    """
    low, high = seed & _MASK, (seed >> 32) & _MASK
    return low, high or _mix(low)


@fusable
def _bits(ids: torch.Tensor, words: tuple[torch.Tensor | int, ...], column: torch.Tensor) -> torch.Tensor:
    """32 random bits for each example and position; `words` are the seed's halves and the rest of the key."""
    low, high, *rest = words
    rows = _mix((ids & _MASK) ^ low)
    rows = _mix(rows ^ _mix((ids >> 32) & _MASK ^ high ^ _GOLDEN))
    for part in rest:
        rows = _mix((rows * 3 + part) & _MASK ^ _GOLDEN)
    column = _mix((column * _GOLDEN) & _MASK)
    # Two rounds, keyed by two numbers, so that equal sums of row and column do not repeat.
    other = _mix(rows ^ 0x85EBCA6B)
    return _mix((_mix(rows[:, None] ^ column[None, :]) + other[:, None]) & _MASK)


@fusable
def _normal(radius: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Two uniform draws into one normal draw, by the Box-Muller transform."""
    return (-2.0 * (1.0 - radius).log()).sqrt() * (2.0 * math.pi * angle).cos()


@dataclass(frozen=True)
class KeyedNoise(Noise):
    """Counter-based noise: `ids` names the examples, `round` the training step or evaluation pass.

    >>> ids = torch.tensor([7, 8, 9])
    >>> all_three = KeyedNoise(seed=1, ids=ids).uniform((2,), stream="start")
    >>> alone = KeyedNoise(seed=1, ids=ids[1:2]).uniform((2,), stream="start")
    >>> bool((all_three[1:2] == alone).all())
    True
    """

    seed: int
    ids: torch.Tensor
    """Example ids, int64 (B,)."""
    round: torch.Tensor | int = 0
    """Changes between uses of the same example, such as the training step; a 0-d tensor where it is captured."""

    def uniform(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        """Draw with 24 random bits each, so that 1 is never reached in float32."""
        return self._uniform(self.ids, shape, stream, target, step)

    def uniform_steps(self, shape: tuple[int, ...], *, stream: str, steps: range) -> torch.Tensor:
        """Draw for several steps at once, the numbers each step would get alone."""
        ids = self.ids.repeat(len(steps))
        each = torch.arange(steps.start, steps.stop, steps.step, device=ids.device).repeat_interleave(len(self.ids))
        return self._uniform(ids, shape, stream, 0, each).reshape(len(steps), len(self.ids), *shape)

    def _uniform(
        self, ids: torch.Tensor, shape: tuple[int, ...], stream: str, target: int, step: torch.Tensor | int
    ) -> torch.Tensor:
        words = (*_halves(self.seed), stream_key(stream), self.round, target, step)
        # Made outside the fused function: compilers take a range for 32-bit indices, which these products overflow.
        column = torch.arange(math.prod(shape), device=ids.device)
        bits = _bits(ids, words, column)
        return ((bits >> 8).float() * 2.0**-24).reshape(len(ids), *shape)

    def normal(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        """Draw from two uniform draws."""
        radius = self.uniform(shape, stream=stream + "/radius", target=target, step=step)
        return _normal(radius, self.uniform(shape, stream=stream + "/angle", target=target, step=step))

    def take(self, positions: torch.Tensor) -> "KeyedNoise":
        """Return the noise of these rows; the numbers they get do not change."""
        return replace(self, ids=self.ids[positions])


def fresh_noise(batch: int, device: torch.device, seed: int | None = None, rank: int = 0) -> KeyedNoise:
    """Noise for a foreign loop: ids count the batch of a process; without a seed torch's global generator gives one."""
    drawn = int(torch.randint(2**62, ()).item()) if seed is None else seed
    return KeyedNoise(seed=drawn, ids=torch.arange(batch, device=device) + (rank << 32))
