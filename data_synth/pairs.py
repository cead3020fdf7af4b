"""One pair, from source bytes to encoded files: a pure function of the plan, the source and the number."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import cv2
import numpy as np
import torch

from data_synth.config import DegradeConfig
from data_synth.degrade import MODES, Degradation, Degrade
from data_synth.streams import derive_seeds
from data_synth.trajectory import FAMILIES, PARAMETERS
from deblur.errors import OptionError
from deblur.images import Picture, decode, encode, to_levels, to_tensor

FORMATS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
EXTENSIONS = {"png": "png", "jpeg": "jpg", "webp": "webp"}


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """All that decides what pair number i looks like, beside its source.

    Attributes:
        config: The degradation.
        seed: Master seed; every pair has its own below it.
        side_px: Faces are cropped to their central square and shrunk to this side, never enlarged; 0 keeps
            pictures whole.
        extents_px: A ladder of extents, gone through pair by pair; empty to draw them from the config.
        format: png (lossless), jpeg or webp (lossy, quality 95).
    """

    config: DegradeConfig
    seed: int = 0
    side_px: int = 128
    extents_px: tuple[float, ...] = ()
    format: str = "png"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise OptionError(f"format: expected one of {', '.join(FORMATS)}, got {self.format!r}")
        if self.side_px < 0 or 0 < self.side_px < 8:
            raise OptionError(f"size: expected 0 or at least 8 px, got {self.side_px}")
        if any(not 0 <= extent < 4096 for extent in self.extents_px):
            raise OptionError(f"extents: expected px in 0..4096, got {self.extents_px}")

    def as_json(self) -> dict[str, Any]:
        """JSON-able form, the same after a round trip through JSON."""
        plain = asdict(self)
        plain["config"] = {k: list(v) if isinstance(v, tuple) else v for k, v in plain["config"].items()}
        return {**plain, "extents_px": list(self.extents_px)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "PairPlan":
        """Back from `as_json`."""
        config: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain["config"].items()}
        values = {**plain, "config": DegradeConfig(**config), "extents_px": tuple(plain["extents_px"])}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A finished pair.

    Attributes:
        blurred: Encoded picture.
        sharp: Encoded picture.
        record: Its line of the manifest.
    """

    blurred: bytes
    sharp: bytes
    record: dict[str, Any]


class PairMaker:
    """Makes pairs by number; holds the bank of paths.

    Args:
        plan: What the pairs look like.
    """

    def __init__(self, plan: PairPlan) -> None:
        self.plan = plan
        self._degrade = Degrade(plan.config)

    def make(self, number: int, source: str, data: bytes) -> Pair:
        """Makes a pair, always by itself, so that no batch or worker can change a bit of it.

        Args:
            number: The pair's number; decides its seed and its rung of the ladder.
            source: Name of the source, for the record.
            data: The source file's content.

        Raises:
            ImageError: The source cannot be decoded.
        """
        plan = self.plan
        sharp = crop_square(decode(data, name=source).levels, plan.side_px)
        seeds = derive_seeds(plan.seed, torch.tensor([number]))
        ladder = plan.extents_px
        extent = torch.tensor([ladder[number % len(ladder)]]) if ladder else None
        blurred, went_through = self._degrade(to_tensor(sharp)[None], extent_px=extent, seeds=seeds)
        files = [
            encode(Picture(levels=levels), FORMATS[plan.format]) for levels in (to_levels(blurred[0], np.uint8), sharp)
        ]
        record = {
            "pair": number,
            "source": source,
            "source_sha256": hashlib.sha256(data).hexdigest(),
            "size": [sharp.shape[1], sharp.shape[0]],
            **self._describe(went_through),
            "blurred_sha256": hashlib.sha256(files[0]).hexdigest(),
            "sharp_sha256": hashlib.sha256(files[1]).hexdigest(),
        }
        return Pair(blurred=files[0], sharp=files[1], record=record)

    def _describe(self, drawn: Degradation) -> dict[str, Any]:
        family = FAMILIES[int(drawn.family[0])]
        parameters = drawn.path_parameters[0].tolist()
        named = {name: round(value, 6) for name, value in zip(PARAMETERS[family], parameters, strict=False)}
        return {
            "seed": int(drawn.seeds[0]),
            "extent_px": round(float(drawn.extent_px[0]), 4),
            "mode": MODES[int(drawn.mode[0])],
            "trajectory": {"family": family, "bank_index": int(drawn.path_index[0]), **named},
            "roll_strength": round(float(drawn.roll_strength[0]), 6),
            "highlight_gain": round(float(drawn.highlight_gain[0]), 6),
            "noise_sigma": round(float(drawn.noise_sigma[0]), 6),
            "shot_share": round(float(drawn.shot_share[0]), 6),
            "bayer": bool(drawn.bayer[0]),
            "jpeg_quality": int(drawn.jpeg_quality[0]) or None,
            "chroma_subsampled": bool(drawn.chroma_subsampled[0]),
        }


def crop_square(levels: np.ndarray, side_px: int) -> np.ndarray:
    """The central square, shrunk by area averaging to at most the side asked for.

    Args:
        levels: (H, W, 3) uint8 or uint16.
        side_px: Side of the result, px; smaller pictures keep theirs; 0 returns the whole picture.

    Returns:
        (S, S, 3) uint8, or (H, W, 3) for side 0.
    """
    if levels.dtype == np.uint16:
        levels = np.round(levels / 257.0).astype(np.uint8)
    if side_px:
        height, width = levels.shape[:2]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        levels = levels[top : top + side, left : left + side]
        if side > side_px:
            levels = cv2.resize(levels, (side_px, side_px), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(levels)
