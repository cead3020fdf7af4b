"""Before and after, side by side, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from deblur.batch.files import write_atomically
from deblur.images import Picture, decode, encode
from deblur.images.encoding import to_pillow

FOLDER = "deblur-compare"
_LONGEST_SIDE_PX = 1600
_GAP_PX = 8
_BOX = (64, 200, 120)


def write_comparison(
    folder: Path,
    output: str,
    before: Picture,
    after: Picture,
    faces_before: Sequence[Any],
    faces_after: Sequence[Any],
) -> Path:
    """Writes `deblur-compare/OUTPUT.jpg`: the input on the left, the result on the right, faces with their scores.

    Args:
        folder: Output folder of the run.
        output: Path of the result below it.
        before: The input.
        after: The result.
        faces_before: Faces found in the input.
        faces_after: Faces found in the result.

    Raises:
        OutputError: It cannot be written.
    """
    sides = [_side(before, faces_before), _side(after, faces_after)]
    sheet = Image.new("RGB", (sides[0].width * 2 + _GAP_PX, sides[0].height), "white")
    sheet.paste(sides[0], (0, 0))
    sheet.paste(sides[1], (sides[0].width + _GAP_PX, 0))
    path = folder / FOLDER / f"{output}.jpg"
    write_atomically(path, encode(decode(np.asarray(sheet)), "JPEG", 90))
    return path


def small_rgb(picture: Picture, longest_side_px: int) -> Image.Image:
    """The picture as an 8-bit RGB image, reduced where it is larger; transparency on white is left out."""
    image = to_pillow(picture)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((picture.levels >> 8).astype(np.uint8))
    image = image.convert("RGB")
    image.thumbnail((longest_side_px, longest_side_px))
    return image


def _side(picture: Picture, faces: Sequence[Any]) -> Image.Image:
    image = small_rgb(picture, _LONGEST_SIDE_PX)
    scale = image.width / picture.width
    draw = ImageDraw.Draw(image)
    for face in faces:
        x0, y0, x1, y1 = (value * scale for value in face.box)
        draw.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=_BOX, width=2)
        draw.text((x0 + 3, max(0, y0 - 12)), f"{face.score:.3f}", fill=_BOX)
    return image
