"""The synthesizer as an albumentations transform; importing this imports albumentations."""

import functools
from typing import Annotated, Any

import albumentations as A
import numpy as np
import torch
from albumentations.core.transforms_interface import BaseTransformInitSchema
from albumentations.core.validation import ValidatedTransformMeta
from pydantic import AfterValidator, Field

from data_synth.config import DegradeConfig
from data_synth.degrade import Degrade

__all__ = ["RandomTrajectoryBlur"]

Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= bounds[0] <= bounds[1]:
        raise ValueError(f"expected (low, high) with 0 <= low <= high, got {bounds}")
    return bounds


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]


@functools.lru_cache(maxsize=4)
def _degrade(config: DegradeConfig) -> Degrade:
    return Degrade(config)


class RandomTrajectoryBlur(A.ImageOnlyTransform):
    """Blurs an image as a camera that moves during the exposure does.

    The same model as `data_synth.Degrade`, one picture at a time: for the same seed and settings the float
    results are equal, and 8-bit results differ by at most one level (rounding). Seeded by `A.Compose(...,
    seed=N)`, like albumentations' own transforms.

    Args:
        extent_px: Range of the blur extent, the larger side of the camera path's bounding box, px.
        mix: Weights of the path families walk, smooth and line.
        rotation_share: Probability that the camera also rolls.
        linear_light: Blur in linear light rather than on the stored values.
        saturation_share: Probability that highlights are brightened before the blur and clipped after it.
        noise_share: Probability of sensor noise.
        noise_sigma: Range of the noise's standard deviation at mid-grey, in units of 0..1.
        jpeg_share: Probability of JPEG compression.
        jpeg_quality: Range of its quality, 1..100.
        p: Probability of applying the transform.

    Targets:
        image, volume

    Image types:
        uint8, float32 in [0, 1]; one or three channels

    Raises:
        pydantic.ValidationError: An argument is out of its range.
    """

    class InitSchema(BaseTransformInitSchema):
        """Checks the arguments."""

        extent_px: Range
        mix: tuple[float, float, float]
        rotation_share: Share
        linear_light: bool
        saturation_share: Share
        noise_share: Share
        noise_sigma: Annotated[tuple[float, float], AfterValidator(_ordered)]
        jpeg_share: Share
        jpeg_quality: tuple[Annotated[int, Field(ge=1, le=100)], Annotated[int, Field(ge=1, le=100)]]

    def __init__(
        self,
        extent_px: tuple[float, float] = (3.0, 27.0),
        mix: tuple[float, float, float] = (0.4, 0.45, 0.15),
        rotation_share: float = 0.0,
        linear_light: bool = True,
        saturation_share: float = 0.0,
        noise_share: float = 0.0,
        noise_sigma: tuple[float, float] = (0.002, 0.025),
        jpeg_share: float = 0.0,
        jpeg_quality: tuple[int, int] = (40, 96),
        p: float = 0.5,
    ) -> None:
        super().__init__(p=p)
        self.extent_px = extent_px
        self.mix = mix
        self.rotation_share = rotation_share
        self.linear_light = linear_light
        self.saturation_share = saturation_share
        self.noise_share = noise_share
        self.noise_sigma = noise_sigma
        self.jpeg_share = jpeg_share
        self.jpeg_quality = jpeg_quality
        self.config()  # what single ranges cannot tell apart is refused here, not at the first picture

    def config(self) -> DegradeConfig:
        """The degradation that these arguments stand for."""
        return DegradeConfig(
            extent_px=self.extent_px,
            sharp_share=0.0,
            mix=self.mix,
            rotation_share=self.rotation_share,
            subject_share=0.0,
            linear_light=self.linear_light,
            saturation_share=self.saturation_share,
            noise_share=self.noise_share,
            noise_sigma=self.noise_sigma,
            bayer_share=0.0,
            jpeg_share=self.jpeg_share,
            jpeg_quality=self.jpeg_quality,
            eight_bit=False,
            bank_size=4096,
        )

    def get_params(self) -> dict[str, Any]:
        """Draws the sample's seed from Compose's generator."""
        return {"sample_seed": self.py_random.getrandbits(62)}

    def apply(self, img: np.ndarray, sample_seed: int, **params: Any) -> np.ndarray:
        """Blurs one picture, (H, W), (H, W, 1) or (H, W, 3)."""
        pixels = img[..., None] if img.ndim == 2 else img
        if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or img.dtype not in (np.uint8, np.float32):
            raise ValueError(f"expected uint8 or float32 with 1 or 3 channels, got {img.dtype} of shape {img.shape}")
        scale = 255.0 if img.dtype == np.uint8 else 1.0
        sharp = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].float() / scale
        degrade = _degrade(self.config())
        blurred, _ = degrade(sharp.expand(1, 3, -1, -1), seeds=torch.tensor([sample_seed]))
        blurred = blurred[:, : sharp.shape[1]]
        if img.dtype == np.uint8:
            blurred = blurred.mul(255.0).round_().byte()
        return blurred[0].permute(1, 2, 0).numpy().reshape(img.shape)


# albumentations validates arguments only where the class is made by this metaclass; a version that stops doing so
# must not go unnoticed.
if not isinstance(RandomTrajectoryBlur, ValidatedTransformMeta):
    raise ImportError("albumentations no longer validates arguments by InitSchema; expected version 2.0.8")
