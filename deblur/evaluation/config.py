"""What to evaluate and how."""

from dataclasses import dataclass
from pathlib import Path

from deblur.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """One evaluation.

    Attributes:
        blurred: folder of blurred pictures; its tree decides which pictures are measured.
        restored: folder with the restored ones under the same relative paths (another suffix is fine).
        weights: bundled name or file to restore with, in place of `restored`.
        sharp: folder with the sharp ones, or None for an unreferenced report.
        negatives: folder of blurred pictures without any face, or None.
        negatives_restored: their restored versions; needed where `negatives` comes with `restored`.
        manifest: CSV or JSON lines with the known extents; None looks for pairs.csv or manifest.jsonl in the
            blurred folder and beside it.
        lpips_backbone: safetensors file with AlexNet's convolutions, "download" for torchvision's, or
            "auto": only when torchvision's are already in torch's cache.
        identity_weights: state dict of the face recogniser, "download", or "auto" as above.
        mode: how to restore: "auto", "faces" or "whole".
        device: where to restore.
        threshold: least final score of a detection.
        strips: how many of the best, median and worst pictures are shown.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """

    blurred: Path
    restored: Path | None = None
    weights: str | None = None
    sharp: Path | None = None
    negatives: Path | None = None
    negatives_restored: Path | None = None
    manifest: Path | None = None
    lpips_backbone: str = "auto"
    identity_weights: str = "auto"
    mode: str = "auto"
    device: str = "auto"
    threshold: float = 0.9
    strips: int = 10
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.restored is None) == (self.weights is None):
            raise OptionError("expected either a folder of restored pictures or weights to restore with")
        if self.negatives is not None and self.weights is None and self.negatives_restored is None:
            raise OptionError("negatives need their restored versions: give weights, or a folder of restored negatives")
        if not 0.7 <= self.threshold <= 1:
            raise OptionError(f"threshold must be between 0.7 and 1, got {self.threshold}")
        if self.strips < 0 or self.resamples < 1:
            raise OptionError("strips must be at least 0 and resamples at least 1")
