"""From folders to a report."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deblur
from deblur.errors import DataError, OptionError
from deblur.evaluation.config import EvaluationConfig
from deblur.evaluation.measure import Networks, Record, load_networks, measure
from deblur.evaluation.pairs import Pair, find_manifest, find_pairs, read_manifest
from deblur.evaluation.report import Negatives, Report
from deblur.evaluation.tables import extent_error, groups, threshold_curve
from deblur.images import encode
from deblur.metrics import LEAST_IOU, WORSE_DB

if TYPE_CHECKING:
    from deblur.restoration import Restorer

Progress = Callable[[str, int, int], None]


def evaluate(
    config: EvaluationConfig, *, restored_folder: Path | None = None, progress: Progress | None = None
) -> Report:
    """Measure restored pictures against blurred and, where there are any, sharp ones.

    Args:
        config: what and how.
        restored_folder: where pictures restored with `config.weights` are written, as PNG; needed with weights.
        progress: called with the step's name, the pictures done and the pictures in all.

    Returns:
        The report; `Report.write` puts it on disk.

    Raises:
        DataError: folders that do not fit together.
        ImageError: a picture cannot be read.
        WeightsError: weights that were named cannot be used.
        OptionError: weights without a folder for the restored pictures.
    """
    tell = progress or (lambda step, done, count: None)
    networks = load_networks(config.lpips_backbone, config.identity_weights)
    manifest = config.manifest or find_manifest(config.blurred)
    known = read_manifest(manifest) if manifest else {}
    pairs, problems = find_pairs(config.blurred, config.restored, config.sharp, known)
    negatives: list[Pair] = []
    if config.negatives is not None:
        negatives, more = find_pairs(config.negatives, config.negatives_restored, None)
        problems += more
    model: dict[str, Any] = {}
    if config.weights is not None:
        if restored_folder is None:
            raise OptionError("weights need a folder for the pictures restored with them")
        restorer = deblur.load(config.weights, device=config.device)
        pairs, kept = _restore(pairs, restorer, config.mode, restored_folder, tell)
        if config.negatives_restored is None:
            negatives, _ = _restore(negatives, restorer, config.mode, restored_folder / "negatives", tell)
        model = {"weights": config.weights, "weights_sha256": restorer.weights.sha256, "faces_left_alone": kept}
    records = _measured(pairs, networks, config.threshold, "measure", tell)
    false = _measured(negatives, networks, config.threshold, "negatives", tell)
    extents, unit, error = _extents(records)
    return Report(
        referenced=config.sharp is not None,
        about=_about(config, manifest, unit, len(records)) | model,
        groups=groups(records, extents, config.threshold, config.resamples, config.seed),
        curve=threshold_curve(records, config.threshold) if config.sharp else [],
        records=records,
        extents=extents,
        extent_error=error,
        negatives=_negatives(false, config.threshold) if config.negatives else None,
        absent=networks.absent,
        problems=problems,
    )


def _restore(
    pairs: Sequence[Pair], restorer: "Restorer", mode: str, folder: Path, tell: Progress
) -> tuple[list[Pair], dict[str, int]]:
    """Each blurred picture restored and stored without loss; and how many faces were left alone, by reason."""
    restored, kept = [], Counter[str]()
    for index, pair in enumerate(pairs):
        name = pair.name if pair.name.lower().endswith(".png") else f"{pair.name}.png"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        result = restorer.restore(pair.blurred, mode=mode)
        path.write_bytes(encode(result.picture, format="PNG"))
        restored.append(dataclasses.replace(pair, restored=path))
        kept.update(face.kept_original for face in result.faces if face.kept_original)
        tell("restore", index + 1, len(pairs))
    return restored, dict(kept)


def _measured(pairs: Sequence[Pair], networks: Networks, threshold: float, step: str, tell: Progress) -> list[Record]:
    records = []
    for record in measure(pairs, networks, threshold):
        records.append(record)
        tell(step, len(records), len(pairs))
    return records


def _extents(records: Sequence[Record]) -> tuple[list[float], str, dict[str, float]]:
    """Extent of each picture, the unit, and the error of the estimate where the extents are known.

    Known extents are used only where every picture has one in the same unit; else all are estimates.
    """
    units = {record.pair.known.unit if record.pair.known else None for record in records}
    if len(units) > 1 or None in units:
        return [round(record.estimated_extent_px, 2) for record in records], "estimated, px", {}
    (unit,) = units
    known = [record.pair.known.extent for record in records if record.pair.known]
    in_pixels = [
        extent * (max(record.size_px) / 128 if unit == "extent_px_at_128" else 1.0)
        for extent, record in zip(known, records, strict=True)
    ]
    label = "px at 128 px" if unit == "extent_px_at_128" else "px"
    return known, label, extent_error(in_pixels, [record.estimated_extent_px for record in records])


def _negatives(records: Sequence[Record], threshold: float) -> Negatives:
    def seen(record: Record, side: str) -> int:
        return sum(face.score >= threshold for face in record.faces[side])

    before, after = ([seen(record, side) for record in records] for side in ("blurred", "restored"))
    names = (record.pair.name for record in records)
    return Negatives(
        pictures=len(records),
        blurred=sum(before) / len(records),
        restored=sum(after) / len(records),
        hallucinated=tuple(name for name, b, a in zip(names, before, after, strict=True) if a > b),
    )


def _about(config: EvaluationConfig, manifest: Path | None, unit: str, pictures: int) -> dict[str, Any]:
    if not pictures:
        raise DataError(f"{config.blurred}: no picture could be measured")
    return {
        "pictures": pictures,
        "blurred": config.blurred,
        "restored": config.restored,
        "sharp": config.sharp,
        "negatives": config.negatives,
        "manifest": manifest,
        "extent_unit": unit,
        "mode": config.mode if config.weights else None,
        "detector": "MTCNN of facenet-pytorch, smallest face 20 px",
        "threshold": config.threshold,
        "least_iou": LEAST_IOU,
        "worse_db": WORSE_DB,
        "interval": f"95%, bootstrap over pictures, {config.resamples} resamples, seed {config.seed}",
        "strips": config.strips,
        "version": deblur.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
