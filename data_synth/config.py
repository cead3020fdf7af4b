"""What a degradation may do: one frozen config, and the named recipes."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from deblur.errors import OptionError

_BOUNDS = {
    "shot_share": (0.0, 1.0),
    "saturation_gain": (1.0, math.inf),
    "white_balance_gain": (1.0, math.inf),
    "jpeg_quality": (1.0, 100.0),
}
"""Where a range has to lie, other than at or above 0."""


@dataclass(frozen=True, kw_only=True)
class DegradeConfig:
    """Strengths of one degradation; every sample draws its own values from these ranges.

    Light is linear with 1.0 at the sensor's full well. Which effects matter follows RSBlur (Rim et al.,
    ECCV 2022): sensor noise first, then blurring in linear light, then the camera pipeline, then saturation.

    Attributes:
        extent_fraction: Range of the blur extent over the shorter side of the picture, uniform. The
            literature's kernels of 13-27 px on 128 px faces (Shen et al., CVPR 2018) are 0.10-0.21; 0.38 is
            where a face stops being recognisable.
        extent_px: Range in px instead, uniform; replaces extent_fraction when given.
        sharp_share: Probability of a (near-)zero extent, uniform in 0..sharp_extent_px, so that a network
            learns to leave sharp pictures alone.
        sharp_extent_px: Upper end of the near-zero extents, px.
        mix: Weights of the path families walk, smooth and line (Boracchi and Foi, IEEE TIP 2012; Rahimi and
            Recht, NIPS 2007; see trajectory.py).
        rotation_share: Probability that the camera also rolls during the exposure (Whyte et al., CVPR 2010:
            blur by in-plane rotation is what a uniform kernel cannot express).
        rotation_strength: Range of the roll: extent of the path that it adds half a side away from the
            centre, as a fraction of extent_px.
        subject_share: Probability that the subject moves and the background stands still, the two composed
            by "over" (Porter and Duff, SIGGRAPH 1984).
        linear_light: Blur in linear light (else on the stored values, as older protocols do).
        saturation_share: Probability that highlights are brightened before the blur and clipped after it
            (RSBlur, section 4: clipped light is what a stored picture lacks).
        saturation_gain: Range of the factor that full white is brightened by, uniform.
        saturation_start: Linear level where brightening begins, 0..1.
        noise_sigma: Range of the noise's standard deviation at stored mid-grey 0.5, in stored units of 0..1,
            log-uniform. 0.004-0.02 spans a phone in daylight to one indoors.
        noise_share: Probability of any noise.
        shot_share: Range of the part of the noise variance at mid-grey that is photon shot noise, 0..1; the
            rest is read noise (Foi et al., IEEE TIP 2008, eq. 2: variance = a x + b).
        noise_in_linear_light: Noise on the sensor (else Gaussian on the stored values).
        bayer_share: Probability that the sensor sees through a Bayer mosaic with white-balance gains.
        white_balance_gain: Range of the red and blue gains over green. Brooks et al. (CVPR 2019, section 3)
            found 1.9-2.4 for red and 1.5-1.9 for blue; tungsten light turns the two round.
        jpeg_share: Probability of JPEG compression, the last step.
        jpeg_quality: Range of libjpeg quality (ITU-T T.81 with libjpeg's scaling), 1..100, uniform, whole
            numbers. Cameras store at 90-97, chat applications at 60-80.
        chroma_subsampling_share: Probability of 4:2:0 chroma, given JPEG.
        eight_bit: Round the result to 8-bit levels, as files hold it.
        bank_size: Number of paths kept; 0 draws a fresh path for every sample.
        bank_seed: Seed of the bank and of the noise table.
    """

    extent_fraction: tuple[float, float] = (0.0, 0.38)
    extent_px: tuple[float, float] | None = None
    sharp_share: float = 0.08
    sharp_extent_px: float = 0.5
    mix: tuple[float, float, float] = (0.4, 0.45, 0.15)
    rotation_share: float = 0.2
    rotation_strength: tuple[float, float] = (0.2, 1.0)
    subject_share: float = 0.05
    linear_light: bool = True
    saturation_share: float = 0.15
    saturation_gain: tuple[float, float] = (1.0, 2.5)
    saturation_start: float = 0.8
    noise_share: float = 1.0
    noise_sigma: tuple[float, float] = (0.002, 0.025)
    shot_share: tuple[float, float] = (0.0, 1.0)
    noise_in_linear_light: bool = True
    bayer_share: float = 0.1
    white_balance_gain: tuple[float, float] = (1.2, 2.4)
    jpeg_share: float = 0.5
    jpeg_quality: tuple[int, int] = (40, 96)
    chroma_subsampling_share: float = 0.6
    eight_bit: bool = True
    bank_size: int = 20_000
    bank_seed: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name.endswith("_share") and not isinstance(value, tuple) and not 0.0 <= value <= 1.0:
                raise OptionError(f"{name}: expected a probability in 0..1, got {value}")
            least, most = _BOUNDS.get(name, (0.0, math.inf))
            if isinstance(value, tuple) and name != "mix" and not least <= value[0] <= value[1] <= most:
                raise OptionError(f"{name}: expected (low, high) in {least:g}..{most:g}, got {value}")
        if len(self.mix) != 3 or min(self.mix) < 0 or sum(self.mix) <= 0:
            raise OptionError(f"mix: expected three weights >= 0 with a sum > 0, got {self.mix}")
        if self.bank_size < 0 or self.sharp_extent_px < 0:
            raise OptionError(
                f"bank_size, sharp_extent_px: expected at least 0, got {self.bank_size}, {self.sharp_extent_px}"
            )
        if self.rotation_share + self.subject_share > 1.0:
            raise OptionError(
                f"rotation_share + subject_share: expected at most 1, got {self.rotation_share} + {self.subject_share}"
            )
        if self.noise_sigma[0] <= 0:
            raise OptionError(
                f"noise_sigma: expected values > 0 (noise_share=0 turns noise off), got {self.noise_sigma}"
            )
        if not 0.0 <= self.saturation_start < 1.0:
            raise OptionError(f"saturation_start: expected a level in [0, 1), got {self.saturation_start}")


def default() -> DegradeConfig:
    """Blur to 0.38 of the side, all of the camera: what the bundled weights are trained on."""
    return DegradeConfig()


def mild() -> DegradeConfig:
    """Light blur, little noise, gentle JPEG: a careful hand with a good phone."""
    return DegradeConfig(
        extent_fraction=(0.0, 0.12),
        sharp_share=0.15,
        noise_sigma=(0.002, 0.01),
        saturation_gain=(1.0, 1.5),
        jpeg_share=0.3,
        jpeg_quality=(75, 96),
    )


def hard() -> DegradeConfig:
    """Long blur, much noise, strong highlights and compression: night, motion, a chat application."""
    return DegradeConfig(
        extent_fraction=(0.1, 0.5),
        sharp_share=0.02,
        rotation_share=0.3,
        subject_share=0.1,
        saturation_share=0.5,
        saturation_gain=(1.0, 6.0),
        noise_sigma=(0.008, 0.05),
        bayer_share=0.3,
        jpeg_share=0.8,
        jpeg_quality=(20, 85),
    )


def shen2018() -> DegradeConfig:
    """The literature's protocol: Shen et al., CVPR 2018, section 5.1.

    On 128 px faces: kernels of 13 to 27 px from random 3-D paths (Boracchi and Foi), uniform over the
    picture, on the stored values, Gaussian noise of sigma 0.01, no compression.
    """
    return DegradeConfig(
        extent_px=(13.0, 27.0),
        sharp_share=0.0,
        mix=(1.0, 0.0, 0.0),
        rotation_share=0.0,
        subject_share=0.0,
        linear_light=False,
        saturation_share=0.0,
        noise_sigma=(0.01, 0.01),
        shot_share=(0.0, 0.0),
        noise_in_linear_light=False,
        bayer_share=0.0,
        jpeg_share=0.0,
        eight_bit=False,
    )


RECIPES: dict[str, Callable[[], DegradeConfig]] = {
    "mild": mild,
    "default": default,
    "hard": hard,
    "shen2018": shen2018,
}


def recipe(name: str) -> DegradeConfig:
    """Looks up a recipe by name: mild, default, hard or shen2018.

    Raises:
        OptionError: There is no such recipe.
    """
    if name not in RECIPES:
        raise OptionError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]()
