"""One record a picture: everything that the tables and curves are made of."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from deblur.blur import estimate_extents
from deblur.errors import DataError, WeightsError
from deblur.evaluation.pairs import Pair
from deblur.faces import Face, FaceDetector, iou
from deblur.images import Picture, decode, to_tensor
from deblur.metrics import (
    LPIPS_LEAST_PX,
    LpipsNetwork,
    identity_similarity,
    load_identity,
    load_lpips,
    lpips,
    psnr,
    ssim,
)

SSIM_LEAST_PX = 11
PSNR_CEILING_DB = 100.0  # of equal pictures, so that means stay finite
LEAST_SCORE = 0.7  # faces are kept from here on, for the curve over thresholds
TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class Networks:
    """What measures the pictures; `absent` says why a network is not there.

    Attributes:
        detector: with a threshold of 0.7.
        lpips: or None.
        identity: or None.
        absent: reason by name of the measure.
    """

    detector: FaceDetector
    lpips: LpipsNetwork | None = None
    identity: nn.Module | None = None
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was measured on one picture.

    Attributes:
        pair: its files.
        size_px: height and width.
        faces: by side ("sharp", "blurred", "restored"), every face with a score from 0.7.
        measures: by name ("psnr" ...), by side; a measure that does not apply is left out.
        estimated_extent_px: estimate of the blur, in pixels of the picture.
    """

    pair: Pair
    size_px: tuple[int, int]
    faces: Mapping[str, Sequence[Face]]
    measures: Mapping[str, Mapping[str, float]]
    estimated_extent_px: float


def load_networks(lpips_backbone: str, identity_weights: str) -> Networks:
    """The detector, and those of the optional networks whose weights are at hand.

    Args:
        lpips_backbone: a file, "download", or "auto" for torch's cache only.
        identity_weights: the same.

    Raises:
        WeightsError: a file that was named cannot be used, or a download that was asked for fails.
    """
    absent: dict[str, str] = {}
    lpips_network = identity = None
    if lpips_backbone == "auto" and not _cached("alexnet-owt-7be5be79.pth"):
        absent["lpips"] = "AlexNet's weights are not at hand: name a file with --lpips-backbone, or download"
    else:
        try:
            lpips_network = load_lpips(_named(lpips_backbone))
        except WeightsError as error:
            if lpips_backbone != "auto":
                raise
            absent["lpips"] = str(error)
    if identity_weights == "auto" and not _cached("20180402-114759-vggface2.pt"):
        absent["identity"] = "no weights of InceptionResnetV1: name a file with --identity-weights, or download"
    else:
        identity = load_identity(_named(identity_weights))
    detector = FaceDetector(threshold=LEAST_SCORE)
    return Networks(detector=detector, lpips=lpips_network, identity=identity, absent=absent)


def _named(option: str) -> Path | None:
    return None if option in ("auto", "download") else Path(option)


def _cached(name: str) -> bool:
    import torch

    return (Path(torch.hub.get_dir()) / "checkpoints" / name).is_file()


def measure(pairs: Sequence[Pair], networks: Networks, threshold: float) -> Iterator[Record]:
    """Measure pictures in order, a few at a time, so that memory does not grow with their number.

    Args:
        pairs: the pictures, each with its restored one, and all or none with the sharp one.
        networks: from `load_networks`.
        threshold: least score of a reference face.

    Raises:
        DataError: a restored or sharp picture has another size than the blurred one.
        ImageError: a picture cannot be read.
    """
    for start in range(0, len(pairs), TOGETHER):
        chunk = pairs[start : start + TOGETHER]
        sides: dict[str, list[Picture]] = {}
        for side in ("blurred", "restored", "sharp"):
            paths = [path for pair in chunk if (path := getattr(pair, side)) is not None]
            if paths:
                sides[side] = [decode(path) for path in paths]
        for pictures in sides.values():
            _check_sizes(chunk, sides["blurred"], pictures)
        faces = {
            side: networks.detector.detect_batch([picture.levels for picture in pictures])
            for side, pictures in sides.items()
        }
        reference = faces.get("sharp", faces["blurred"])
        boxes = [found[0].box if found else None for found in reference]
        extents = estimate_extents([picture.levels for picture in sides["blurred"]], boxes)
        for index, pair in enumerate(chunk):
            pictures_here = {side: pictures[index] for side, pictures in sides.items()}
            found_here = {side: found[index] for side, found in faces.items()}
            yield Record(
                pair=pair,
                size_px=(pictures_here["blurred"].height, pictures_here["blurred"].width),
                faces=found_here,
                measures=_measures(pictures_here, found_here, networks, threshold),
                estimated_extent_px=extents[index],
            )


def _check_sizes(chunk: Sequence[Pair], blurred: Sequence[Picture], others: Sequence[Picture]) -> None:
    for pair, one, other in zip(chunk, blurred, others, strict=True):
        if one.levels.shape != other.levels.shape:
            raise DataError(
                f"{pair.name}: expected one size for blurred, restored and sharp, got "
                f"{one.width} x {one.height} and {other.width} x {other.height}"
            )


def _measures(
    pictures: Mapping[str, Picture], faces: Mapping[str, Sequence[Face]], networks: Networks, threshold: float
) -> dict[str, dict[str, float]]:
    """Fidelity to the sharp picture, of the blurred and of the restored one."""
    if "sharp" not in pictures:
        return {}
    tensors = {side: to_tensor(picture.levels)[None] for side, picture in pictures.items()}
    boxes = [face.box for face in faces["sharp"] if face.score >= threshold]
    measures: dict[str, dict[str, float]] = {}
    for side in ("blurred", "restored"):
        for name, value in _fidelity(tensors[side], tensors["sharp"], boxes, networks).items():
            measures.setdefault(name, {})[side] = value
    return measures


def _fidelity(
    picture: Tensor, sharp: Tensor, boxes: Sequence[tuple[float, float, float, float]], networks: Networks
) -> dict[str, float]:
    least = min(sharp.shape[-2:])
    values = {"psnr": min(PSNR_CEILING_DB, psnr(picture, sharp, data_range=1.0).item())}
    if least >= SSIM_LEAST_PX:
        values["ssim"] = ssim(picture, sharp, data_range=1.0).item()
    if networks.lpips is not None and least >= LPIPS_LEAST_PX:
        values["lpips"] = lpips(picture, sharp, networks.lpips, data_range=1.0).item()
    if networks.identity is not None and boxes:
        many = (len(boxes), -1, -1, -1)
        cosines = identity_similarity(
            picture.expand(many), sharp.expand(many), boxes, networks.identity, data_range=1.0
        )
        values["identity"] = cosines.mean().item()
    return {name: value for name, value in values.items() if math.isfinite(value)}


def agreement(before: Sequence[Face], after: Sequence[Face]) -> float:
    """Mean best overlap of the faces before with those after; nan where there was none before."""
    if not before:
        return math.nan
    return sum(max((iou(a.box, b.box) for b in after), default=0.0) for a in before) / len(before)
