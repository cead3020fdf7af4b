"""Whole pictures by tiles: cost against size, peak memory, and how near a tile comes to the whole.

    python -m benchmarks.tiling [--weights NAME|FILE] [--threads 2] [--plot tiling.png] [--smoke]

* With the bundled weights in float32, the largest difference, in levels of 255, between the core of a tile and the same
  pixels of the whole picture, by the width of the tile's halo; then between the library's own tiles and one pass.
* The work of a picture over the work of its pixels alone, by the side of a tile's core: the halos are done twice.
* Pictures of 12 to 100 megapixels through `Restorer` in mode `whole`, each in a process of its own: seconds, and peak
  resident memory less what the picture itself and its result take (6 bytes a pixel). With one thread the seconds are
  processor time.

The last line holds the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.timing import last_line, machine, markdown
from deblur import tiling
from deblur.devices import keep_freed_memory
from deblur.images import Picture, decode, to_tensor
from deblur.regions import tiles
from deblur.restoration import Restorer
from deblur.weights import load_weights

SAMPLES = Path(__file__).parent.parent / "samples" / "blurred"
HALOS_PX, CORES_PX = (32, 64, 96, 128, 160, 192, 224, 256), (512, 768, 1024, 1536, 2048)
MEGAPIXELS = (12, 24, 50, 100)
CORE_PX = 64  # of the tiles whose halo is tried


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megapixels", type=float, nargs="+", default=MEGAPIXELS)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write time and memory against megapixels")
    parser.add_argument("--smoke", action="store_true", help="small pictures; checks that the script runs")
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)  # the process of one picture
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    if args.one is not None:
        print(json.dumps(whole_picture(args.weights, args.one)))
        return
    print(machine(torch.device("cpu")))
    halos = by_halo(args.weights, (32, tiling.HALO_PX) if args.smoke else HALOS_PX)
    print(markdown(("halo px", "largest difference, levels"), halos.items()))
    tiled = tiles_against_whole(args.weights, 300 if args.smoke else 1400)
    print(f"the library's tiles against one pass: {tiled} level(s)\n")
    print(markdown(("core px", "work over pixels, 24 MP", "largest input, MP"), by_core(4000, 6000)))
    megapixels = (0.3,) if args.smoke else args.megapixels
    measured = [in_process_of_its_own(size) for size in megapixels]
    header = ("MP", "seconds", "s a MP", "peak MiB", "less the picture, MiB")
    print(markdown(header, [(m["mp"], m["s"], m["s"] / m["mp"], m["peak_mib"], m["work_mib"]) for m in measured]))
    if args.plot:
        plot(measured, args.plot)
    first, last = measured[0], measured[-1]
    ratios = {
        f"s a MP, {last['mp']:.0f} MP/{first['mp']:.0f} MP": last["s"] / last["mp"] / (first["s"] / first["mp"]),
        f"memory less the picture, {last['mp']:.0f} MP/{first['mp']:.0f} MP": last["work_mib"] / first["work_mib"],
        f"levels at the halo of {tiling.HALO_PX} px": halos[tiling.HALO_PX],
    }
    print(last_line(ratios))


@torch.inference_mode()
def by_halo(weights: str, halos_px: tuple[int, ...]) -> dict[int, float]:
    """Largest difference between the core of a tile and the whole, over the samples, in levels of 255."""
    generator = load_weights(weights).generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    worst = dict.fromkeys(halos_px, 0.0)
    for path in sorted(SAMPLES.glob("*.jpg")):
        picture = to_tensor(decode(path).levels)[None, :, :1024, :1024]
        whole = generator(picture)
        height, width = picture.shape[2:]
        across, down = (range(0, side, side // 2 // 32 * 32) for side in (width, height))
        for y, x in itertools.product(down, across):
            core = whole[..., y : y + CORE_PX, x : x + CORE_PX]
            for halo in halos_px:
                top, left = max(0, y - halo), max(0, x - halo)
                tile = generator(picture[..., top : y + CORE_PX + halo, left : x + CORE_PX + halo])
                same = tile[..., y - top : y - top + core.shape[2], x - left : x - left + core.shape[3]]
                worst[halo] = max(worst[halo], 255 * float((same - core).abs().max()))
    return worst


def tiles_against_whole(weights: str, side: int) -> int:
    """Largest difference between the library's tiles and one pass over the same picture, in levels, float32."""
    restorer = Restorer(load_weights(weights), device="cpu", precision="fp32")
    picture = Picture(levels=photo(side, side))
    kept = tiling.TILE_PX
    results = []
    for core in (tiling.extended(side // 2), tiling.extended(side)):
        tiling.TILE_PX = core
        plan = restorer.plan(picture, "whole")
        results.append(restorer.finish(plan, restorer.stream(plan.inputs)).picture.levels.astype(int))
    tiling.TILE_PX = kept
    return int(np.abs(results[0] - results[1]).max())


def by_core(height: int, width: int) -> list[tuple[int, float, float]]:
    """Side of a tile's core; pixels that go through the generator over those of the picture; the largest input."""
    kept, rows = tiling.TILE_PX, []
    for core in CORES_PX:
        tiling.TILE_PX = core
        areas = [region.side[0] * region.side[1] for region in tiles(height, width)]
        rows.append((core, sum(areas) / (height * width), max(areas) / 1e6))
    tiling.TILE_PX = kept
    return rows


def whole_picture(weights: str, megapixels: float) -> dict[str, Any]:
    """Seconds and peak memory of one picture, from levels to levels."""
    height = round((megapixels * 1e6 / 1.5) ** 0.5)
    restorer = Restorer(load_weights(weights), device="cpu")
    restorer.restore(photo(256, 256), mode="whole")  # warms up
    picture = Picture(levels=photo(height, round(1.5 * height)))
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = now()
    plan = restorer.plan(picture, "whole")
    restorer.finish(plan, restorer.stream(plan.inputs))
    seconds = now() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
    pixels = picture.height * picture.width
    return {"mp": pixels / 1e6, "s": seconds, "peak_mib": peak, "work_mib": peak - 6 * pixels / 2**20}


def in_process_of_its_own(megapixels: float) -> dict[str, Any]:
    """`whole_picture` in a fresh process, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.tiling", *sys.argv[1:], "--one", str(megapixels)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def photo(height: int, width: int) -> NDArray[np.uint8]:
    """(height, width, 3): a blurred still life repeated."""
    with Image.open(SAMPLES / "coffee.jpg") as image:
        tile = np.asarray(image.convert("RGB"))
    levels = np.empty((height, width, 3), np.uint8)
    for y in range(0, height, tile.shape[0]):
        for x in range(0, width, tile.shape[1]):
            part = levels[y : y + tile.shape[0], x : x + tile.shape[1]]
            part[:] = tile[: part.shape[0], : part.shape[1]]
    return levels


def plot(measured: list[dict[str, Any]], path: Path) -> None:
    """Time and memory against megapixels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    sizes = [m["mp"] for m in measured]
    left.plot(sizes, [m["s"] for m in measured], "o-")
    left.set(xlabel="megapixels", ylabel="seconds", title="time of a whole picture", xlim=(0, None), ylim=(0, None))
    right.plot(sizes, [m["peak_mib"] for m in measured], "o-", label="peak")
    right.plot(sizes, [m["work_mib"] for m in measured], "s--", label="less picture and result")
    right.set(xlabel="megapixels", ylabel="MiB", title="resident memory", xlim=(0, None), ylim=(0, None))
    right.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
