"""HEIC and HEIF, through the optional extra."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from deblur.errors import CorruptImage, UnsupportedImage
from deblur.images import metadata
from deblur.images.picture import Picture


@dataclass(frozen=True, kw_only=True)
class HeifImage:
    """An opened HEIF file whose pixels are not decoded yet."""

    file: Any
    width: int
    height: int
    format: str = "HEIF"
    n_frames: int = 1


def open_heif(data: bytes, name: str) -> HeifImage:
    """Opens the header.

    Raises:
        UnsupportedImage: The extra is not installed; the message names it.
        CorruptImage: The header cannot be read.
    """
    library = heif_library(name)
    try:
        file = library.open_heif(BytesIO(data), convert_hdr_to_8bit=True)
        width, height = file.size
    except (OSError, ValueError, RuntimeError, EOFError, SyntaxError) as error:
        raise CorruptImage(f"{name}: the HEIF header cannot be read ({error})") from error
    return HeifImage(file=file, width=width, height=height)


def heif_library(name: str) -> Any:
    """The module pillow_heif.

    Raises:
        UnsupportedImage: It is not installed; the message names the extra.
    """
    try:
        import pillow_heif
    except ImportError as error:
        raise UnsupportedImage(
            f'{name}: HEIC/HEIF needs an optional package: pip install "face-deblur[heif]"'
        ) from error
    return pillow_heif


def to_picture(image: HeifImage, name: str) -> Picture:
    """Decodes the primary picture (8 bits; the library turns it upright itself).

    Raises:
        CorruptImage: It cannot be decoded.
    """
    try:
        pixels = np.asarray(image.file)
    except (OSError, ValueError, RuntimeError, EOFError, SyntaxError) as error:
        raise CorruptImage(f"{name}: damaged or cut short ({error})") from error
    grey = pixels.ndim == 2 or pixels.shape[2] < 3
    if grey:
        pixels = pixels.reshape(*pixels.shape[:2], -1)
    levels = np.repeat(pixels[..., :1], 3, axis=2) if grey else np.ascontiguousarray(pixels[..., :3])
    channels = pixels.shape[2]
    info = image.file.info
    count = len(image.file)
    return Picture(
        levels=levels,
        alpha=np.ascontiguousarray(pixels[..., -1]) if channels in (2, 4) else None,
        grey=grey,
        format="HEIF",
        lossless=False,
        icc=info.get("icc_profile") or None,
        exif=metadata.clean_exif(info.get("exif")),
        xmp=info.get("xmp") or None,
        warnings=(f"container: first of {count} pictures used",) if count > 1 else (),
    )
