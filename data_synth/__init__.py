"""Blur that real cameras make: trajectory -> kernel -> degrade, batched on the tensors' device.

Quick start::

    from data_synth import Degrade, default
    degrade = Degrade(default())
    blurred, info = degrade(sharp)  # sharp: (B, 3, H, W) float32 in [0, 1]
"""

from data_synth.config import DegradeConfig, default, hard, mild, recipe, shen2018
from data_synth.degrade import Degrade
from data_synth.kernel import KernelBank, sample_kernels
from data_synth.trajectory import Trajectories, sample_trajectories

__all__ = [
    "Degrade",
    "DegradeConfig",
    "KernelBank",
    "Trajectories",
    "default",
    "hard",
    "mild",
    "recipe",
    "sample_kernels",
    "sample_trajectories",
    "shen2018",
]
