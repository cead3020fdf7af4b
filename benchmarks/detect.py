"""Detection must not be the bottleneck of restoring a photo.

    python -m benchmarks.detect [--weights NAME|FILE] [--smoke]

Restores a synthetic 12 megapixel photo with one and with ten blurred faces, and prints which share of the
time goes into detection, before and after the restoration together. Beside it: facenet-pytorch's own
pipeline on the same photo, and how well the boxes agree. The last line holds the ratios. Run it with two
threads on an idle machine.
"""

import argparse
import io
import time
from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import deblur
from deblur.faces import Face, FaceDetector, match_faces
from deblur.restoration import Restorer
from deblur.weights import load_weights

FACE_PX = 260
REPEATS = 3


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a small photo, once; checks that the script runs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(args.threads)
    height, width = (900, 1200) if args.smoke else (3000, 4000)
    ratios = []
    for faces in (1, 2) if args.smoke else (1, 10):
        share = measure(photo(height, width, faces), faces, args.weights, 1 if args.smoke else REPEATS)
        ratios.append(f"share {faces} face{'s' * (faces > 1)} {share:.2f}")
    ratios.append(f"stock/ours {compare(photo(height, width, 10), 1 if args.smoke else REPEATS):.1f}")
    print("ratios: " + ", ".join(ratios))


def measure(levels: NDArray[np.uint8], faces: int, weights: str, repeats: int) -> float:
    """Share of detection in restoring the photo, from JPEG bytes to JPEG bytes: the median run."""
    stream = io.BytesIO()
    Image.fromarray(levels).save(stream, "JPEG", quality=92)
    watch = TimedDetector()
    restorer = Restorer(load_weights(weights), device="cpu", detector=watch)
    runs = []
    for _ in range(repeats + 1):  # the first warms up
        watch.seconds = 0.0
        clock, started = time.perf_counter(), time.process_time()
        result = restorer.restore(stream.getvalue())
        total, clock_s = time.process_time() - started, time.perf_counter() - clock
        runs.append((total, watch.seconds, clock_s, len(result.faces_before), len(result.faces_after)))
    total, detection, clock_s, before, after = sorted(runs[1:])[len(runs[1:]) // 2]
    print(
        f"{levels.shape[1]} x {levels.shape[0]} px, {faces} faces put in: restore {total:.2f} s "
        f"({clock_s:.2f} s by the clock), of which detection {detection:.2f} s = {detection / total:.0%}; "
        f"faces found {before} before, {after} after"
    )
    return detection / total


class TimedDetector(FaceDetector):
    """Counts the seconds that it is asked for."""

    seconds = 0.0

    def detect_batch(self, levels: Sequence[NDArray], *, smallest_px: float | None = None) -> list[list[Face]]:
        """As FaceDetector."""
        started = time.process_time()
        found = super().detect_batch(levels, smallest_px=smallest_px)
        self.seconds += time.process_time() - started
        return found


def compare(levels: NDArray[np.uint8], repeats: int) -> float:
    """Time of facenet-pytorch's pipeline over ours on one photo; prints both and the agreement of the boxes."""
    from facenet_pytorch import MTCNN

    detector = FaceDetector()
    stock = MTCNN(keep_all=True, select_largest=False)
    picture = Image.fromarray(levels)
    ours_s, found = fastest(lambda: detector.detect(levels), repeats)
    with torch.inference_mode():
        stock_s, (boxes, scores) = fastest(lambda: stock.detect(picture), repeats)
    smallest = detector.smallest_face_px(*levels.shape[:2])
    pairs = zip(boxes if boxes is not None else [], scores, strict=False)
    faces = [Face(tuple(map(float, box)), float(score)) for box, score in pairs if score >= detector.threshold]
    reference = [face for face in faces if face.height_px >= smallest]
    hits = [match for _, match in match_faces(found, reference) if match is not None]
    print(
        f"detection alone: {ours_s:.2f} s against {stock_s:.2f} s; {len(hits)} of its {len(reference)} faces of "
        f"{smallest:.0f} px or more, {len(found) - len(hits)} others"
    )
    return stock_s / ours_s


def fastest(action: Callable, repeats: int) -> tuple[float, "object"]:
    """Least seconds of some runs after one to warm up, and the result."""
    result, times = action(), []
    for _ in range(repeats):
        started = time.process_time()
        result = action()
        times.append(time.process_time() - started)
    return min(times), result


def photo(height: int, width: int, faces: int) -> NDArray[np.uint8]:
    """A textured photo with motion-blurred copies of scikit-image's portrait of Eileen Collins."""
    from skimage.data import astronaut

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    levels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    head = np.ascontiguousarray(astronaut()[:256, 96:352])
    per_row = max(1, width // (FACE_PX * 3 // 2))
    for index in range(faces):
        scale = FACE_PX / 110 * (0.6 + 0.08 * index)  # the face is 110 px high in the original
        side = round(256 * min(scale, height / 256 / 3, width / 256 / per_row))
        face = cv2.resize(head, (side, side), interpolation=cv2.INTER_CUBIC)
        face = cv2.blur(face, (max(1, side // 24), 1))
        y, x = (index // per_row) * (height // 3), (index % per_row) * (width // per_row)
        levels[y : y + side, x : x + side] = face[: height - y, : width - x]
    return np.asarray(levels, np.uint8)


if __name__ == "__main__":
    print(f"face-deblur {deblur.__version__}, torch {torch.__version__}")
    main()
