"""Validation: fixed pairs, the same in every run, of faces that training never sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_synth import Degrade
from deblur.errors import DataError
from deblur.images import decode, to_tensor
from deblur.metrics import WORSE_DB, DetectionOutcome, detection_rate, judge_detection, psnr, ssim
from training.config import TrainConfig
from training.data import CropSampler
from training.perceptual import PerceptualLoss

SEED = 20_240_229  # of the pairs: not the run's, so that runs compare
PIXELS_TOGETHER = 1_000_000
SSIM_LEAST_PX = 11
PSNR_CEILING_DB = 100.0  # of equal pictures, so that means stay finite
LOWER_IS_BETTER = frozenset({"perceptual"})

Restore = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Blurred and sharp pictures, each (3, H, W) uint8; sizes may differ from pair to pair."""

    blurred: Sequence[Tensor]
    sharp: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.sharp)

    def groups(self) -> list[list[int]]:
        """Indices of pairs of one size, as many as are worth taking together."""
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, picture in enumerate(self.sharp):
            by_size.setdefault(tuple(picture.shape), []).append(index)
        groups = []
        for (_, height, width), indices in by_size.items():
            together = max(1, PIXELS_TOGETHER // (height * width))
            groups += [indices[i : i + together] for i in range(0, len(indices), together)]
        return groups


def made_pairs(config: TrainConfig, sampler: CropSampler, degrade: Degrade) -> Pairs:
    """Pairs made from held-out faces, in the sizes and blur of the run's end, with a seed of their own."""
    buckets = sampler.usable(config.stages[-1].buckets)
    chosen = [sampler.bucket(i, buckets) for i in range(config.validation_count)]
    blurred, sharp = [], []
    for index, bucket in enumerate(chosen):
        crop = sampler.crop(np.random.default_rng((SEED, index)), bucket)
        picture = torch.from_numpy(crop.copy()).permute(2, 0, 1).contiguous()  # decoded levels may be read-only
        result, _ = degrade(picture[None].float() / 255, seeds=torch.tensor([SEED + index]))
        sharp.append(picture)
        blurred.append((result[0] * 255).round().to(torch.uint8))
    return Pairs(blurred=blurred, sharp=sharp)


def read_pairs(folder: Path) -> Pairs:
    """Pairs from a folder with `blurred/` and `sharp/`, matched by name.

    Raises:
        DataError: the folders are not there, nothing matches, or a pair differs in size.
    """
    from deblur.evaluation.pairs import find_pairs

    for side in ("blurred", "sharp"):
        if not (folder / side).is_dir():
            raise DataError(f"--validate {folder}: expected blurred/ and sharp/ in it; {side}/ is absent")
    found, _ = find_pairs(folder / "blurred", None, folder / "sharp")
    blurred, sharp = [], []
    for pair in found:
        assert pair.sharp is not None
        one, other = (_eight_bit(decode(path).levels) for path in (pair.blurred, pair.sharp))
        if one.shape != other.shape:
            raise DataError(
                f"--validate {pair.name}: blurred is {one.shape[:2]}, sharp {other.shape[:2]}; expected one size"
            )
        blurred.append(one)
        sharp.append(other)
    return Pairs(blurred=blurred, sharp=sharp)


def _eight_bit(levels: np.ndarray) -> Tensor:
    return (to_tensor(levels) * 255).round().to(torch.uint8)


class Validation:
    """Measures a generator on fixed pairs.

    Args:
        pairs: the pairs.
        device: where to restore.
        detect: run the face detector too, if facenet-pytorch is installed.
        perceptual: network of the perceptual loss, to measure its distance too; or None.
    """

    def __init__(self, pairs: Pairs, device: torch.device, *, detect: bool, perceptual: PerceptualLoss | None):
        self.pairs, self.device, self.perceptual = pairs, device, perceptual
        self.blurred_measures: dict[str, float] = {}
        self._detect = _Detection(pairs, device) if detect and find_spec("facenet_pytorch") else None

    def measure(self, restore: Restore) -> tuple[dict[str, float], list[Tensor]]:
        """Measures and pictures.

        Args:
            restore: blurred (B, 3, H, W) float32 on the device to restored.

        Returns:
            Means over the pairs: `psnr` (dB), `ssim`, each with its `..._blurred` counterpart, `worse` (share of
            pictures whose PSNR fell), and where they apply `perceptual`, `detection_rate`, `confidence`; and the
            restored pictures, (3, H, W) uint8.
        """
        restored = self._restored(restore)
        if not self.blurred_measures:
            self.blurred_measures = self._means(self.pairs.blurred)
        means = self._means(restored)
        gains = np.array(self._psnr(restored)) - np.array(self._psnr(self.pairs.blurred))
        means["worse"] = float((gains < -WORSE_DB).mean())
        means |= {f"{name}_blurred": value for name, value in self.blurred_measures.items()}
        return means, restored

    @torch.no_grad()
    def _restored(self, restore: Restore) -> list[Tensor]:
        results: list[Tensor | None] = [None] * len(self.pairs)
        for group in self.pairs.groups():
            batch = torch.stack([self.pairs.blurred[i] for i in group]).to(self.device).float() / 255
            answers = (restore(batch.contiguous(memory_format=torch.channels_last)).clamp(0, 1) * 255).round()
            for index, answer in zip(group, answers.to("cpu", torch.uint8), strict=True):
                results[index] = answer.contiguous()
        return [r for r in results if r is not None]

    @torch.no_grad()
    def _means(self, pictures: Sequence[Tensor]) -> dict[str, float]:
        means = {"psnr": float(np.mean(self._psnr(pictures)))}
        similarities: list[float] = []
        distances: list[tuple[float, int]] = []
        for group in self.pairs.groups():
            ours, sharp = (torch.stack([side[i] for i in group]) for side in (pictures, self.pairs.sharp))
            if min(sharp.shape[-2:]) >= SSIM_LEAST_PX:
                similarities += ssim(ours, sharp, data_range=255).tolist()
            if self.perceptual is not None:
                a, b = (x.to(self.device).float() / 255 for x in (ours, sharp))
                distances.append((float(self.perceptual(a, b)), len(group)))
        if similarities:
            means["ssim"] = float(np.mean(similarities))
        if distances:
            means["perceptual"] = sum(d * n for d, n in distances) / len(self.pairs)
        return means | (self._detect.means(pictures) if self._detect else {})

    def _psnr(self, pictures: Sequence[Tensor]) -> list[float]:
        values = (psnr(a[None], b[None], data_range=255) for a, b in zip(pictures, self.pairs.sharp, strict=True))
        return [min(PSNR_CEILING_DB, float(v)) for v in values]


class _Detection:
    """The face detector's view, measured against what it finds on the sharp pictures."""

    def __init__(self, pairs: Pairs, device: torch.device):
        from deblur.faces import FaceDetector

        self._detector = FaceDetector(device)
        self._reference = self._detector.detect_batch(_levels(pairs.sharp))

    def means(self, pictures: Sequence[Tensor]) -> dict[str, float]:
        found = self._detector.detect_batch(_levels(pictures))
        outcomes: list[DetectionOutcome] = [
            judge_detection(ours, wanted) for ours, wanted in zip(found, self._reference, strict=True)
        ]
        confidences = [c for outcome in outcomes for c in outcome.confidences]
        if not confidences:
            return {}
        return {"detection_rate": detection_rate(outcomes), "confidence": float(np.mean(confidences))}


def _levels(pictures: Sequence[Tensor]) -> list[np.ndarray]:
    return [picture.permute(1, 2, 0).numpy() for picture in pictures]


def better(measure: str, value: float, best: float | None) -> bool:
    """Whether a value of a measure beats the best so far."""
    if math.isnan(value):
        return False
    return best is None or (value < best if measure in LOWER_IS_BETTER else value > best)
