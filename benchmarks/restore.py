"""A photo of 12 megapixels with one and with ten blurred faces, restored stage by stage.

    python -m benchmarks.restore [--weights NAME|FILE] [--threads 2] [--smoke]

The photo is composed from samples/sharp. Stages: decode the JPEG, detect the faces, judge their blur, cut the regions,
generate, look again at each restored face, blend (with the do-no-harm checks), encode. Each photo runs in a process
of its own, whose peak resident memory is printed; medians of the runs after the first. A share is of the whole. With
one thread the times are processor time, with more those of the clock. The last line holds the ratios.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import deblur.planning
import deblur.restoration
from benchmarks.timing import last_line, machine, markdown
from deblur.devices import keep_freed_memory
from deblur.images import decode, encode
from deblur.restoration import Restorer
from deblur.results import Restoration
from deblur.weights import load_weights

SHARP = Path(__file__).parent.parent / "samples" / "sharp"
STAGES = ("decode", "detect", "judge blur", "cut", "generate", "look again", "blend", "encode")
LIMIT = 0.4  # no stage but the generator may take more


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="a small photo, once; checks that the script runs")
    parser.add_argument("--faces", type=int, help=argparse.SUPPRESS)  # the process of one photo
    args = parser.parse_args()
    if args.faces is not None:
        print(json.dumps(measure(args)))
        return
    found = {faces: in_process_of_its_own(faces) for faces in ((2,) if args.smoke else (1, 10))}
    torch.set_num_threads(args.threads)
    print(machine(torch.device("cpu")))
    header = ("stage", *(f"{faces} face{'s' * (faces > 1)}, ms | share" for faces in found))
    header = tuple(" | ".join(header).split(" | "))
    rows: list[tuple[Any, ...]] = []
    for stage in STAGES:
        cells = [(1e3 * m["stages"][stage], f"{m['stages'][stage] / total(m):.0%}") for m in found.values()]
        rows.append((stage, *(cell for pair in cells for cell in pair)))
    rows.append(("all", *(cell for m in found.values() for cell in (1e3 * total(m), ""))))
    rows.append(("faces found, restored", *(c for m in found.values() for c in (m["found"], m["restored"]))))
    rows.append(("peak memory, MiB", *(cell for m in found.values() for cell in (m["peak_mib"], ""))))
    print(markdown(header, rows))
    ratios = {}
    for faces, m in found.items():
        others = {stage: m["stages"][stage] / total(m) for stage in STAGES if stage != "generate"}
        worst = max(others, key=lambda stage: others[stage])
        ratios[f"largest other share, {faces} face(s): {worst} (limit {LIMIT})"] = others[worst]
        ratios[f"generate share, {faces} face(s)"] = m["stages"]["generate"] / total(m)
    print(last_line(ratios))


def total(measured: dict[str, Any]) -> float:
    """Seconds of all stages."""
    return float(sum(measured["stages"].values()))


def in_process_of_its_own(faces: int) -> dict[str, Any]:
    """`measure` in a fresh process, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.restore", *sys.argv[1:], "--faces", str(faces)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds by stage, faces and peak memory of one photo."""
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(args.threads)
    keep_freed_memory()
    content = photo((1200, 900) if args.smoke else (4000, 3000), args.faces)
    watch = Watch(args.threads)
    restorer = Restorer(load_weights(args.weights), device="cpu")
    watch.watch(restorer)
    runs = []
    for _ in range(2 if args.smoke else args.runs + 1):
        watch.seconds.clear()
        result = once(watch, restorer, content)
        runs.append(dict(watch.seconds))
    stages = {stage: statistics.median(run.get(stage, 0.0) for run in runs[1:]) for stage in STAGES}
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {
        "stages": stages,
        "found": len(result.faces_before),
        "restored": sum(face.restored for face in result.faces),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit,
    }


def once(watch: Watch, restorer: Restorer, content: bytes) -> Restoration:
    """From the bytes of a JPEG to the bytes of a JPEG."""
    with watch.stage("decode"):
        picture = decode(content)
    watch.looking = "detect"
    plan = restorer.plan(picture)
    with watch.stage("generate"):
        outputs = list(restorer.stream(plan.inputs))
    watch.looking = "look again"
    with watch.stage("blend"):
        result = restorer.finish(plan, outputs)
    with watch.stage("encode"):
        encode(result.picture, "JPEG", 92)
    return result


class Watch:
    """Adds up seconds by stage; a stage within a stage counts for itself alone."""

    def __init__(self, threads: int) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.looking = "detect"
        self._now = time.process_time if threads == 1 else time.perf_counter
        self._open: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of its block."""
        began = self._now()
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()
            taken = self._now() - began
            self.seconds[name] += taken
            if self._open:
                self.seconds[self._open[-1]] -= taken

    def watch(self, restorer: Restorer) -> None:
        """Wraps what the restorer calls inside its steps."""
        detect = restorer.detector.detect
        restorer.detector.detect = self._timed(lambda: self.looking, detect)  # type: ignore[method-assign]
        for module, name, stage in (
            (deblur.restoration, "estimate_extents", "judge blur"),
            (deblur.planning, "region_input", "cut"),
        ):
            setattr(module, name, self._timed(lambda stage=stage: stage, getattr(module, name)))

    def _timed(self, stage: Callable[[], str], call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            with self.stage(stage()):
                return call(*args, **options)

        return timed


def photo(size: tuple[int, int], faces: int) -> bytes:
    """A JPEG of width x height: still lifes side by side, and before them as many motion-blurred portraits."""
    width, height = size
    levels = np.array(Image.open(SHARP / "coffee.jpg").convert("RGB").resize((width // 2, height // 2)))
    levels = np.block([[[levels], [levels[:, ::-1]]], [[levels[::-1]], [levels[::-1, ::-1]]]])
    heads = [np.asarray(Image.open(SHARP / name).convert("RGB")) for name in ("astronaut.jpg", "hopper.jpg")]
    across, down = (5, 2) if faces > 1 else (1, 1)
    for index in range(faces):
        head = heads[index % 2][: min(heads[index % 2].shape[:2])]
        side = round(min(width / across, height / down, 1400 * width / 4000) * (0.95 - 0.04 * (index % 5)))
        pasted = blurred(cv2.resize(head[:, : head.shape[0]], (side, side)), max(3, side // 40), 36 * index)
        x, y = index % across * (width // across), index // across * (height // down)
        levels[y : y + side, x : x + side] = pasted
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(levels)).save(stream, "JPEG", quality=92)
    return stream.getvalue()


def blurred(levels: NDArray[np.uint8], length_px: int, angle_deg: float) -> NDArray[np.uint8]:
    """Moved along a line of this length."""
    kernel = np.zeros((length_px | 1, length_px | 1), np.float32)
    kernel[length_px // 2] = 1
    turn = cv2.getRotationMatrix2D((length_px // 2, length_px // 2), angle_deg, 1)
    kernel = cv2.warpAffine(kernel, turn, kernel.shape[::-1])
    return np.asarray(cv2.filter2D(levels, -1, kernel / kernel.sum()), np.uint8)


if __name__ == "__main__":
    main()
