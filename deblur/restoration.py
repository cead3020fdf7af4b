"""Restoration of a picture: detect -> crop -> generate -> judge -> lay back.

The steps can be called one by one (`plan`, `generate`, `finish`), so that callers with many pictures put the faces of
all of them into one batch; `restore` is the three in a row.

Do no harm: a face is left as it was, and the result says why, when it is sharp already or when the detector,
the landmarks or the colours say that its restoration would be worse. A whole picture has no face to compare
with beforehand: mode `auto` leaves it as it was unless a face is found afterwards or it is a small blurred crop,
mode `whole` restores it as told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deblur.backends import check_backend
from deblur.batching import Landing, a_few_at_a_time, in_batches
from deblur.blur import estimate_extents
from deblur.boxes import Face, match_faces, moved
from deblur.devices import resolve_device, resolve_precision
from deblur.errors import OptionError
from deblur.faces import FaceDetector
from deblur.harm import Limits as HarmLimits
from deblur.harm import harm_done
from deblur.images import Picture, decode, like
from deblur.images.picture import Source
from deblur.inference import Optimize, Runner
from deblur.onnx_weights import load_onnx
from deblur.planning import Plan
from deblur.regions import Region, face_region, feather, is_flat, lay_back, tiles, without_overlap
from deblur.results import FaceResult, Restoration
from deblur.weights import Weights, load_weights

MODES = ("auto", "faces", "whole")
DETECTION_THRESHOLD = 0.9  # the frozen setting of the quality metric
LONGEST_EXTENT_PX = 48.0  # at the working scale: what the generator is trained on at 128 px
SMALLEST_LOOK_PX = 20.0
CROP_PX = 512  # a picture up to this side may be a cut-out face
SAME_FACE_IOU = 0.3  # a restored face's box may grow or shrink a little


class Restorer:
    """Holds a generator and a detector; restores pictures. Safe to share between threads on one device.

    Args:
        weights: loaded weights.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        precision: `auto`, `fp32`, `bf16` or `fp16`.
        detector: a detector of one's own.
        harm: limits beyond which a face is left as it was.
        optimize: see `deblur.inference.Runner`: `none`, `graphs` or `compile`.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        device: str | torch.device = "auto",
        precision: str = "auto",
        detector: FaceDetector | None = None,
        harm: HarmLimits | None = None,
        optimize: Optimize = "none",
    ):
        self.device = resolve_device(device)
        self.dtype = resolve_precision(precision, self.device)
        self.weights = weights
        self.generator = weights.generator.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.runner = Runner(self.generator, self.device, self.dtype, optimize)
        self.detector = detector or FaceDetector(self.device, DETECTION_THRESHOLD)
        self.harm = harm or HarmLimits()

    def restore(self, image: Source, *, mode: str = "auto") -> Restoration:
        """Restores one picture.

        Args:
            image: path, file content, PIL image, or (H, W), (H, W, 3) or (H, W, 4) uint8 or uint16 array, RGB.
            mode: `faces` restores the faces found and nothing else; `whole` the whole picture; `auto` the faces, or
                where none is found the whole picture, and then looks again.

        Returns:
            The result; its `image` is of the kind given (a path gives a PIL image).

        Raises:
            ImageError: the picture cannot be used.
            OptionError: the mode is not known.
            OutOfMemory: even one input does not fit the device.
        """
        picture = decode(image)
        plan = self.plan(picture, mode)
        return self.finish(plan, self.stream(plan.inputs), image)

    def plan(self, picture: Picture, mode: str = "auto") -> Plan:
        """Finds faces and decides where the generator works.

        Raises:
            OptionError: the mode is not known.
        """
        if mode not in MODES:
            raise OptionError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        started = time.perf_counter()
        plan = Plan(picture=picture, mode="none")
        plan.faces = self.detector.detect(picture.levels)
        plan.extents_px = estimate_extents([picture.levels] * len(plan.faces), [f.box for f in plan.faces])
        if mode == "whole" or (mode == "auto" and not plan.faces):
            plan.mode = "whole"
            plan.strict = mode == "whole" or self._is_blurred_crop(picture)
            plan.regions = list(tiles(picture.height, picture.width))
        else:
            self._plan_faces(plan)
        plan.timings["detect"] = time.perf_counter() - started
        return plan

    def _plan_faces(self, plan: Plan) -> None:
        height, width = plan.picture.height, plan.picture.width
        for index, (face, extent) in enumerate(zip(plan.faces, plan.extents_px, strict=True)):
            if extent < self.harm.least_extent * face.width_px:
                plan.kept[index] = "sharp"
                continue
            plan.regions.append(face_region(face, index, height, width, _working_scale(extent)))
        plan.mode = "faces" if plan.regions else "none"

    def _is_blurred_crop(self, picture: Picture) -> bool:
        """Whether a picture is small enough to be a cut-out face, and clearly blurred."""
        if max(picture.height, picture.width) > CROP_PX:
            return False
        extent = estimate_extents([picture.levels], [None])[0]
        return extent >= self.harm.least_extent * max(picture.height, picture.width)

    def generate(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the generator; inputs of one size share a batch.

        Args:
            inputs: (3, h, w) float32 tensors in [0, 1].

        Returns:
            One (3, h, w) float32 CPU tensor each, in order, unclipped.

        Raises:
            OutOfMemory: even one input does not fit the device.
        """
        return in_batches(inputs, self._forward)

    def stream(self, inputs: Sequence[Tensor]) -> Iterator[Tensor]:
        """Like `generate`, a few inputs at a time: memory stays bounded however many there are."""
        return a_few_at_a_time(inputs, self._forward)

    def _forward(self, batch: Tensor) -> Landing:
        return self.runner.launch(batch)

    def finish(self, plan: Plan, outputs: Iterable[Tensor], source: Source | None = None) -> Restoration:
        """Lays back what the generator gave, looks at every face again, and undoes what did harm.

        Args:
            plan: from `plan`.
            outputs: one tensor a region, in order; may be an iterator.
            source: what the result's `image` is to be like; None gives the `Picture`.
        """
        started = time.perf_counter()
        original = plan.picture.levels
        if plan.mode == "none":
            faces = [
                FaceResult(before=f, after=f, kept_original=plan.kept[i], extent_px=plan.extents_px[i])
                for i, f in enumerate(plan.faces)
            ]
            why = "every face is sharp" if plan.faces else "no face was found"
            return self._result(plan, original, faces, why, source, started)
        levels = original.copy()
        if plan.mode == "whole":
            for index, (region, restored) in enumerate(zip(plan.regions, outputs, strict=True)):
                given = plan.inputs.take(index)
                if not is_flat(plan.picture, region):
                    lay_back(levels, original, region, given, restored, feather(region))
            return self._finish_whole(plan, levels, source, started)
        results = self._finish_faces(plan, levels, outputs)
        untouched = all(not r.restored for r in results)
        return self._result(plan, levels, results, "no face would have gained" if untouched else None, source, started)

    def _finish_faces(self, plan: Plan, levels: np.ndarray, outputs: Iterable[Tensor]) -> list[FaceResult]:
        original, after = plan.picture.levels, dict[int, Face | None]()
        covered: list[tuple[Region, np.ndarray]] = []
        for index, (region, restored) in enumerate(zip(plan.regions, outputs, strict=True)):
            assert region.face is not None
            given = plan.inputs.take(index)
            x0, y0, x1, y1 = region.box
            undo = levels[y0:y1, x0:x1].copy()
            mask = without_overlap(feather(region), region, covered)
            lay_back(levels, original, region, given, restored, mask)
            before, now = plan.faces[region.face], self._look(levels, plan.faces[region.face], region)
            reason = harm_done(self.harm, before, now, original[y0:y1, x0:x1], levels[y0:y1, x0:x1], mask)
            if reason:
                levels[y0:y1, x0:x1] = undo
                plan.kept[region.face] = reason
            else:
                covered.append((region, mask))
                after[region.face] = now
        return [
            FaceResult(
                before=face,
                after=face if i in plan.kept else after[i],
                kept_original=plan.kept.get(i),
                extent_px=plan.extents_px[i],
            )
            for i, face in enumerate(plan.faces)
        ]

    def _look(self, levels: np.ndarray, face: Face, region: Region) -> Face | None:
        """The same face in the picture as it is now, looked for in its region alone."""
        x0, y0, x1, y1 = region.box
        # Smaller faces than this one do not matter here, and leaving them out saves most of the detector's time.
        smallest_px = max(SMALLEST_LOOK_PX, min(face.width_px, face.height_px) / 2)
        found = [moved(f, x0, y0) for f in self.detector.detect(levels[y0:y1, x0:x1], smallest_px=smallest_px)]
        return match_faces(found, [face], SAME_FACE_IOU)[0][1]

    def _finish_whole(self, plan: Plan, levels: np.ndarray, source: Source | None, started: float) -> Restoration:
        now = self.detector.detect(levels)
        pairs = match_faces(now, plan.faces, SAME_FACE_IOU)
        matched = [after for _, after in pairs if after is not None]
        faces = [
            FaceResult(before=before, after=after, extent_px=plan.extents_px[i])
            for i, (before, after) in enumerate(pairs)
        ]
        faces += [FaceResult(before=None, after=f) for f in now if f not in matched]
        if not faces and not plan.strict:
            return self._result(plan, plan.picture.levels, [], "no face was found, before or after", source, started)
        return self._result(plan, levels, faces, None, source, started)

    def _result(
        self,
        plan: Plan,
        levels: np.ndarray,
        faces: Sequence[FaceResult],
        kept: str | None,
        source: Source | None,
        started: float,
    ) -> Restoration:
        picture = plan.picture if levels is plan.picture.levels or kept else plan.picture.with_levels(levels)
        return Restoration(
            image=picture if source is None else like(source, picture),
            picture=picture,
            mode="none" if kept else plan.mode,
            faces=tuple(faces),
            kept_original=kept,
            timings={**plan.timings, "finish": time.perf_counter() - started},
            weights={"name": self.weights.name, "sha256": self.weights.sha256},
        )


def load(
    name_or_path: str | os.PathLike[str] = "default",
    *,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
) -> Restorer:
    """A restorer with bundled or local weights.

    Args:
        name_or_path: a bundled name, or a path to a weights file or to what `deblur export --onnx` wrote.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        precision: `auto`, `fp32`, `bf16` or `fp16`.
        backend: what runs the generator: `auto`, `torch`, `compile`, `graphs`, `onnx` or `openvino`; see
            `deblur.backends.BACKENDS`.

    Raises:
        WeightsError: the weights are absent or damaged.
        DeviceError: the device is not there.
        OptionError: a name is not known, or the backend does not run these weights or is not installed.
    """
    check_backend(backend, os.fspath(name_or_path))
    if backend == "openvino":
        on_cpu = resolve_precision(precision, torch.device("cpu"))
        weights = load_onnx(Path(name_or_path), backend, "fp32" if on_cpu == torch.float32 else "bf16")
    else:
        weights = load_weights(name_or_path)
    optimize: Optimize = backend if backend in ("compile", "graphs") else "none"  # type: ignore[assignment]
    return Restorer(weights, device=device, precision=precision, optimize=optimize)


def _working_scale(extent_px: float) -> float:
    """How much a region is reduced, so that its blur is no longer than what the generator was trained on."""
    return max(1.0, extent_px / LONGEST_EXTENT_PX)
