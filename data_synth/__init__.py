"""Blur that real cameras make: trajectory -> kernel -> degrade, batched on the tensors' device.

Quick start::

    from data_synth import Degrade, default
    degrade = Degrade(default())
    blurred, info = degrade(sharp)  # sharp: (B, 3, H, W) float32 in [0, 1]
"""

from typing import TYPE_CHECKING, Any

from data_synth.config import DegradeConfig, default, hard, mild, recipe, shen2018
from data_synth.degrade import Degrade
from data_synth.kernel import KernelBank, sample_kernels
from data_synth.trajectory import Trajectories, sample_trajectories

if TYPE_CHECKING:
    from data_synth.transform import RandomTrajectoryBlur

__all__ = [
    "Degrade",
    "DegradeConfig",
    "KernelBank",
    "RandomTrajectoryBlur",
    "Trajectories",
    "default",
    "hard",
    "mild",
    "recipe",
    "sample_kernels",
    "sample_trajectories",
    "shen2018",
]


def __getattr__(name: str) -> Any:
    """Imports the albumentations transform on first use: nothing else here needs albumentations."""
    if name == "RandomTrajectoryBlur":
        from data_synth.transform import RandomTrajectoryBlur

        return RandomTrajectoryBlur
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
