"""Faces and their landmarks, found by MTCNN. The only module that imports facenet-pytorch.

The three networks and their weights (Zhang et al. 2016, "Joint Face Detection and Alignment using Multi-task
Cascaded Convolutional Networks") come from the facenet-pytorch wheel; the pipeline around them is our own. On
pictures of up to about 2 megapixels it gives facenet-pytorch's boxes (a test holds this). Larger pictures
skip the finest levels of the image pyramid, so that the cost stays bounded:
`FaceDetector.smallest_face_px` tells the size of the smallest face that is looked for.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchvision.ops import nms

from deblur.area_sampling import AreaSampler, clipped_boxes
from deblur.boxes import Face, iou, match_faces, sorted_faces, turned_back, without_contained
from deblur.detector_layers import MaxPool, PReLU, Scanner
from deblur.errors import OptionError, UnsupportedImage

__all__ = ["Face", "FaceDetector", "identity_network", "iou", "match_faces", "sorted_faces"]

CELL_PX = 12  # the window that PNet judges
STRIDE_PX = 2
PYRAMID_FACTOR = 0.709  # about the square root of a half: every second level halves the area's side
STAGE_THRESHOLDS = (0.6, 0.7, 0.7)  # of PNet, RNet and ONet; no final threshold below the last makes sense
RNET_PX, ONET_PX = 24, 48
CANDIDATES_PER_PASS = 512
PIXELS_PER_STRIP = 250_000  # of a level that PNet takes at once
PIXELS_PER_PASS = 4_000_000  # of pictures taken through the pyramid together


class FaceDetector:
    """Finds faces with MTCNN; deterministic, safe to share between threads.

    Args:
        device: where the networks run.
        threshold: least final score of a face that is reported; from 0.7, the last network's own, to 1.
        min_face_px: size of the smallest face looked for, at least 12.
        largest_level_px: pixels of the largest pyramid level. Pictures whose finest level (min_face_px
            shrunk to 12 px) is larger skip levels until one fits, which raises the smallest face; faces
            above that keep their boxes. The default keeps min_face_px at 20 up to 4.4 megapixels and
            looks for faces from 40 px in a photo of 12 megapixels.

    Raises:
        OptionError: a value is out of its range.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        threshold: float = 0.9,
        min_face_px: float = 20.0,
        largest_level_px: int = 800_000,
        turns: Sequence[int] = (0,),
    ):
        if not STAGE_THRESHOLDS[2] <= threshold <= 1.0:
            raise OptionError(f"threshold must be between {STAGE_THRESHOLDS[2]} and 1, got {threshold}")
        if min_face_px < CELL_PX:
            raise OptionError(f"min_face_px must be at least {CELL_PX}, got {min_face_px}")
        if largest_level_px < CELL_PX**2:
            raise OptionError(f"largest_level_px must be at least {CELL_PX**2}, got {largest_level_px}")
        if not turns or not set(turns) <= {0, 1, 2, 3}:
            raise OptionError(f"turns must name quarter turns out of 0, 1, 2, 3; got {tuple(turns)}")
        self.turns = tuple(turns)
        self.device = torch.device(device)
        self.threshold = float(threshold)
        self.min_face_px = float(min_face_px)
        self.largest_level_px = int(largest_level_px)
        self._pnet = _load("pnet", self.device)
        self._rnet = _load("rnet", self.device)
        self._onet = _load("onet", self.device)

    def smallest_face_px(self, height: int, width: int) -> float:
        """Size in pixels of the smallest face looked for in a picture of height x width."""
        scales = self._scales(height, width)
        return CELL_PX / scales[0] if scales else self.min_face_px

    def detect(self, levels: NDArray, *, smallest_px: float | None = None) -> list[Face]:
        """Find the faces of one picture.

        Args:
            levels: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8 or uint16, RGB; alpha is not looked at.
                Any size, down to 1x1.
            smallest_px: look only for faces of about this size and above, which is faster: most of the work is in
                looking for small ones. Larger faces keep their boxes.

        Returns:
            The faces, best score first (then by box); empty when there is none.

        Raises:
            UnsupportedImage: another shape or dtype.
        """
        return self.detect_batch([levels], smallest_px=smallest_px)[0]

    def detect_batch(self, levels: Sequence[NDArray], *, smallest_px: float | None = None) -> list[list[Face]]:
        """Find the faces of several pictures; those of one size go through the networks together.

        Args:
            levels: pictures as `detect` takes them, of any sizes.
            smallest_px: as for `detect`.

        Returns:
            One list of faces a picture, in the order of the pictures.
        """
        pictures = [_as_rgb8(picture) for picture in levels]
        smallest_px = self.min_face_px if smallest_px is None else smallest_px
        found: list[list[Face]] = [[] for _ in pictures]
        for turn in self.turns:
            blank = [index for index, faces in enumerate(found) if not faces]
            turned = [np.rot90(pictures[index], turn) for index in blank]
            for index, faces in zip(blank, self._detect_any(turned, smallest_px), strict=True):
                height, width = pictures[index].shape[:2]
                found[index] = [turned_back(face, turn, height, width) for face in faces]
        return found

    def _detect_any(self, pictures: list[NDArray[np.uint8]], smallest_px: float) -> list[list[Face]]:
        found: list[list[Face]] = [[] for _ in pictures]
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, picture in enumerate(pictures):
            by_size.setdefault(picture.shape, []).append(index)
        for (height, width, _), indices in by_size.items():
            together = max(1, PIXELS_PER_PASS // (height * width))
            for start in range(0, len(indices), together):
                chunk = indices[start : start + together]
                for index, faces in zip(
                    chunk, self._detect_equal([pictures[i] for i in chunk], smallest_px), strict=True
                ):
                    found[index] = faces
        return found

    def _scales(self, height: int, width: int) -> list[float]:
        """Scales of the pyramid from fine to coarse; empty when no face fits the picture."""
        scale, scales = CELL_PX / self.min_face_px, []
        while min(height, width) * scale >= CELL_PX:
            if int(height * scale + 1) * int(width * scale + 1) <= self.largest_level_px:
                scales.append(scale)
            scale *= PYRAMID_FACTOR
        return scales

    @torch.inference_mode()
    def _detect_equal(self, pictures: list[NDArray[np.uint8]], smallest_px: float) -> list[list[Face]]:
        height, width = pictures[0].shape[:2]
        # One level finer than asked for, so that faces of just that size are seen at more than one level.
        finest = CELL_PX / (smallest_px * PYRAMID_FACTOR)
        scales = [scale for scale in self._scales(height, width) if scale <= finest]
        if not scales:
            return [[] for _ in pictures]
        sources = [AreaSampler(picture, scales[0]) for picture in pictures]
        proposed = self._propose(sources, scales)
        refined = self._refine(sources, proposed)
        return self._decide(sources, refined)

    def _propose(self, sources: list["AreaSampler"], scales: list[float]) -> list[Tensor]:
        """Stage one: PNet over the pyramid. Returns (n, 4) square boxes for each picture."""
        height, width = sources[0].height, sources[0].width
        kept: list[list[Tensor]] = [[] for _ in sources]
        for scale in scales:
            size = int(height * scale + 1), int(width * scale + 1)
            offsets, probabilities = self._scan(self._to_input([source.level(*size) for source in sources]))
            offsets, scores = offsets.float().cpu(), probabilities[:, 1].float().cpu()
            for index in range(len(sources)):
                cells = (scores[index] >= STAGE_THRESHOLDS[0]).nonzero()  # (n, 2): row, column
                rows, columns = cells.unbind(1)
                at_cells = scores[index][rows, columns, None]
                start = (STRIDE_PX * cells.flip(1).float() + 1) / scale
                boxes = torch.cat([start.floor(), (start + (CELL_PX - 1) / scale).floor()], dim=1)
                candidates = torch.cat([boxes, at_cells, offsets[index][:, rows, columns].T], dim=1)
                kept[index].append(candidates[nms(boxes, candidates[:, 4], 0.5)])
        proposals = []
        for parts in kept:
            candidates = torch.cat(parts)
            candidates = candidates[nms(candidates[:, :4], candidates[:, 4], 0.7)]
            corners, sides = candidates[:, :4], (candidates[:, 2:4] - candidates[:, :2]).repeat(1, 2)
            proposals.append(_square(corners + candidates[:, 5:9] * sides))
        return proposals

    def _scan(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """PNet over a level in strips, which keep it in the cache and give what the whole gives.

        Args:
            level: (B, 3, H, W).

        Returns:
            Offsets (B, 4, h, w) and probabilities (B, 2, h, w).
        """
        count, _, height, width = level.shape
        cells = (height - 1) // STRIDE_PX - 4  # rows of the answer
        strip = max(8, PIXELS_PER_STRIP // (count * width * STRIDE_PX))
        answers = []
        for first in range(0, cells, strip):
            last = min(first + strip, cells)
            # The last strip takes all rows: an odd one out still counts, as the pooling rounds up.
            end = height if last == cells else STRIDE_PX * (last - 1) + CELL_PX
            answers.append(self._pnet(level[:, :, STRIDE_PX * first : end]))
        offsets, probabilities = (torch.cat(part, dim=2) for part in zip(*answers, strict=True))
        return offsets, probabilities

    def _refine(self, sources: list["AreaSampler"], proposals: list[Tensor]) -> list[Tensor]:
        """Stage two: RNet on every proposal. Returns (n, 4) square boxes for each picture."""
        proposals = [_inside(boxes, s) for boxes, s in zip(proposals, sources, strict=True)]
        offsets, probabilities = self._judge(self._rnet, sources, proposals, RNET_PX)
        refined = []
        counts = [len(boxes) for boxes in proposals]
        answers = (part.split(counts) for part in (offsets, probabilities[:, 1]))
        for boxes, moves, scores in zip(proposals, *answers, strict=True):
            passed = scores > STAGE_THRESHOLDS[1]
            boxes, moves, scores = boxes[passed], moves[passed], scores[passed]
            kept = nms(boxes, scores, 0.7)
            refined.append(_square(_moved(boxes[kept], moves[kept])))
        return refined

    def _decide(self, sources: list["AreaSampler"], refined: list[Tensor]) -> list[list[Face]]:
        """Stage three: ONet on what is left; landmarks, final boxes and scores."""
        refined = [_inside(boxes, s) for boxes, s in zip(refined, sources, strict=True)]
        offsets, points, probabilities = self._judge(self._onet, sources, refined, ONET_PX)
        counts = [len(boxes) for boxes in refined]
        found = []
        answers = (part.split(counts) for part in (offsets, points, probabilities[:, 1]))
        for boxes, moves, marks, scores in zip(refined, *answers, strict=True):
            passed = scores > STAGE_THRESHOLDS[2]
            boxes, moves, marks, scores = boxes[passed], moves[passed], marks[passed], scores[passed]
            sides = boxes[:, 2:] - boxes[:, :2] + 1
            marks = marks.reshape(-1, 2, 5).transpose(1, 2)  # (n, 5, 2)
            marks = marks * sides[:, None] + boxes[:, None, :2] - 1
            boxes = _moved(boxes, moves)
            faces = [
                Face(tuple(box), score, tuple(map(tuple, mark)))
                for box, score, mark in zip(boxes.tolist(), scores.tolist(), marks.tolist(), strict=True)
            ]
            found.append([face for face in without_contained(faces) if face.score >= self.threshold])
        return found

    def _judge(
        self, network: nn.Module, sources: list["AreaSampler"], boxes: list[Tensor], side_px: int
    ) -> tuple[Tensor, ...]:
        """Run a network on the crops of all pictures, in the order of pictures and boxes."""
        crops = np.concatenate([s.crops(b.numpy(), side_px) for s, b in zip(sources, boxes, strict=True)])
        # Even without a crop the network runs once, which gives the empty answers their shapes.
        padded = crops if len(crops) else np.zeros((1, side_px, side_px, 3), np.float32)
        passes = (padded[i : i + CANDIDATES_PER_PASS] for i in range(0, len(padded), CANDIDATES_PER_PASS))
        answers = [network(self._to_input(part)) for part in passes]
        return tuple(torch.cat(part)[: len(crops)].float().cpu() for part in zip(*answers, strict=True))

    def _to_input(self, pictures: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> Tensor:
        stacked = np.stack(list(pictures)) if len(pictures) > 1 else pictures[0][None]  # a view of the usual one
        return torch.from_numpy(stacked).to(self.device).permute(0, 3, 1, 2)  # (B, H, W, C) is channels last


def _inside(boxes: Tensor, source: AreaSampler) -> Tensor:
    """Only the boxes that share at least one pixel with the picture."""
    x0, y0, x1, y1 = clipped_boxes(boxes.numpy(), source.height, source.width).T
    return boxes[torch.from_numpy((x1 > x0) & (y1 > y0))]


def _square(boxes: Tensor) -> Tensor:
    """Each box grown to a square around its centre."""
    sides = boxes[:, 2:] - boxes[:, :2]
    longest = sides.amax(dim=1, keepdim=True)
    corner = boxes[:, :2] + sides * 0.5 - longest * 0.5
    return torch.cat([corner, corner + longest], dim=1)


def _moved(boxes: Tensor, moves: Tensor) -> Tensor:
    """Boxes with their corners moved by a network's answer, which is relative to their sides."""
    return boxes + moves * (boxes[:, 2:] - boxes[:, :2] + 1).repeat(1, 2)


def identity_network() -> nn.Module:
    """InceptionResnetV1 without weights: (B, 3, 160, 160) in [-1, 1] -> (B, 512) of unit length."""
    from facenet_pytorch import InceptionResnetV1  # here, as below: measures without a detector do not need it

    return InceptionResnetV1(pretrained=None, classify=False).eval()


def _as_rgb8(levels: NDArray) -> NDArray[np.uint8]:
    picture = np.asarray(levels)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or 0 in picture.shape:
        raise UnsupportedImage(f"expected levels (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); got {levels.shape}")
    if picture.dtype == np.uint16:
        picture = ((picture.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if picture.dtype != np.uint8:
        raise UnsupportedImage(f"expected uint8 or uint16 levels, got {picture.dtype}; convert with to_levels")
    if picture.shape[2] == 1:
        picture = np.repeat(picture, 3, axis=2)
    return picture[:, :, :3]


def _load(name: str, device: torch.device) -> nn.Module:
    import facenet_pytorch

    kinds = {"pnet": facenet_pytorch.PNet, "rnet": facenet_pytorch.RNet, "onet": facenet_pytorch.ONet}
    network = kinds[name](pretrained=False)
    path = Path(facenet_pytorch.__file__).parent / "data" / f"{name}.pt"
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    # The networks were trained on values in [-1, 1]: their first convolution, which pads nothing, takes 0..255 instead.
    first = network.conv1
    with torch.no_grad():
        first.weight /= 128
        first.bias -= 127.5 * first.weight.sum(dim=(1, 2, 3))
    for part, module in network.named_children():
        if isinstance(module, nn.MaxPool2d):
            setattr(network, part, MaxPool(int(module.kernel_size)))  # type: ignore[arg-type]
        elif isinstance(module, nn.PReLU):
            setattr(network, part, PReLU(module.weight))
    if name == "pnet":
        network = Scanner(network)
    network.eval().requires_grad_(False).to(device)
    return network.to(memory_format=torch.channels_last)
