"""Random numbers that depend on a sample's own seed alone.

A batch of 32 and 32 batches of one must give the same pictures, whatever the worker count. A stateful
generator cannot do that without a loop over samples; a counter hashed with each sample's seed can, in
whole-batch tensor operations on any device.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

# Finaliser of SplitMix64 (Steele, Lea, Flood 2014), its constants as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


_BLOCK = 1 << 16  # values hashed at a time: what fits the processor's cache


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)).mul_(_FIRST)
    x ^= (x >> 27).bitwise_and_(0x1FFFFFFFFF)
    x.mul_(_SECOND)
    x ^= (x >> 31).bitwise_and_(0x1FFFFFFFF)
    return x


def derive_seeds(seed: int, index: Tensor) -> Tensor:
    """Gives every index its own seed under one master seed.

    Args:
        seed: Master seed, any Python integer (taken modulo 2**63).
        index: (n,) int64.

    Returns:
        (n,) int64 in [0, 2**62), on the index's device.
    """
    master = _mix(torch.tensor([seed % (1 << 63)], dtype=torch.int64, device=index.device))
    return _mix(master + (index + 1) * _GOLDEN) & ((1 << 62) - 1)


def to_normal(first: Tensor, second: Tensor) -> Tensor:
    """Standard normal numbers from two uniform ones each (Box and Muller 1958), any shape."""
    return torch.sqrt(-2.0 * torch.log(first)) * torch.cos(2.0 * math.pi * second)


class Streams:
    """One independent random stream per sample; rows never depend on each other.

    Args:
        seeds: (B,) int64. Draws come back on its device.
        purpose: Keeps streams made from the same seeds for different ends apart.
        ahead: Number of single draws made at once, for speed: the same numbers as one by one.
    """

    def __init__(self, seeds: Tensor, purpose: int = 0, ahead: int = 0) -> None:
        self._keys = _mix(_mix(seeds.to(torch.int64)) + purpose)
        self._used = 0
        self._ahead: list[Tensor] = []
        if ahead:
            self._ahead = list(self.uniform(ahead).T.contiguous().unbind(0))

    def _hashes(self, count: int) -> Iterator[Tensor]:
        """Blocks of rows, in order, of (B, count) int64 hashes."""
        counter = torch.arange(self._used + 1, self._used + count + 1, device=self._keys.device) * _GOLDEN
        self._used += count
        for keys in self._keys.split(max(1, _BLOCK // max(1, count))):
            yield _mix(keys[:, None] + counter)

    def uniform(self, *shape: int) -> Tensor:
        """Draws (B, *shape) float32, uniform in the open interval (0, 1)."""
        if self._ahead and not shape:
            return self._ahead.pop(0)
        parts = [((bits >> 40).bitwise_and_(0xFFFFFF)).float() for bits in self._hashes(math.prod(shape))]
        return torch.cat(parts).add_(0.5).mul_(1.0 / (1 << 24)).reshape(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Draws (B, *shape) float32, standard normal."""
        return to_normal(self.uniform(*shape), self.uniform(*shape))

    def increments(self, count: int, scale: Tensor) -> Iterator[Tensor]:
        """Increments of a random walk in two dimensions, block by block so that they stay in the cache.

        They are uniform, of mean 0: the sum of many is normal whatever the law of one, and 16-bit quarters
        of a hash are far cheaper than normals.

        Args:
            count: Number of steps.
            scale: (B,) standard deviation of a step along each axis.

        Yields:
            (2, steps, B) float32; the steps of all blocks add up to count.
        """
        hashes = -(-count // 2)  # each holds two steps
        counter = torch.arange(self._used + 1, self._used + hashes + 1, device=self._keys.device) * _GOLDEN
        self._used += hashes
        unit = scale * (math.sqrt(12.0) / 65536.0)
        left = count
        for some in counter.split(max(1, _BLOCK // max(1, len(scale)))):
            quarters = _mix(self._keys + some[:, None]).view(torch.int16).view(len(some), -1, 4)
            lanes = quarters.permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
            steps = lanes.add_(0.5).mul_(unit).view(2, -1, len(scale))
            yield steps[:, :left]
            left -= steps.shape[1]

    def between(self, bounds: tuple[float, float]) -> Tensor:
        """Draws (B,) float32, uniform between the bounds."""
        return bounds[0] + (bounds[1] - bounds[0]) * self.uniform()

    def log_between(self, bounds: tuple[float, float]) -> Tensor:
        """Draws (B,) float32, log-uniform between the bounds (both above zero)."""
        low, high = math.log(bounds[0]), math.log(bounds[1])
        return torch.exp(low + (high - low) * self.uniform())

    def chance(self, probability: float) -> Tensor:
        """Draws (B,) bool, true with the probability given."""
        return self.uniform() < probability
