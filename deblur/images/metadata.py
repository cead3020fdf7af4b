"""EXIF and XMP: reading the orientation, and keeping the rest as it was."""

from __future__ import annotations

import re
import struct

import numpy as np
from PIL import Image

EXIF_PREFIX = b"Exif\x00\x00"
_ORIENTATION = 0x0112
# A TIFF file's own directory also says how its pixels are stored; only what describes the picture may move
# on.
_DESCRIPTIVE_TAGS = (270, 271, 272, 305, 306, 315, 33432)
_SUB_DIRECTORIES = (34665, 34853)
_XMP_ORIENTATION = re.compile(rb"""(tiff:Orientation\s*(?:=\s*["']|>))\s*[1-8]""")


def orientation_of(image: Image.Image) -> int:
    """EXIF orientation 1-8 of an opened image; 1 when absent or damaged."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, struct.error, KeyError, TypeError):
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (H, W) or (H, W, C) turned as the EXIF orientation (EXIF 2.32, section 4.6.4) asks for."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def clean_exif(block: bytes | None) -> bytes | None:
    """An EXIF block with orientation 1 and its thumbnail unlinked; all else byte for byte.

    The block is patched in place rather than parsed and written anew, because maker notes hold absolute
    offsets that do not survive rewriting. The thumbnail shows the picture before restoration, so it goes.

    Args:
        block: TIFF block, with or without the "Exif" prefix.

    Returns:
        The block without the prefix, or None where there is none or it is no TIFF block.
    """
    if not block:
        return None
    data = bytearray(block[len(EXIF_PREFIX) :] if block.startswith(EXIF_PREFIX) else block)
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            if struct.unpack_from(order + "H", data, entry)[0] == _ORIENTATION:
                struct.pack_into(order + "HIHH", data, entry + 2, 3, 1, 1, 0)  # SHORT, one value: 1
        struct.pack_into(order + "I", data, start + 2 + 12 * count, 0)
    except struct.error:
        return None
    return bytes(data)


def exif_of(image: Image.Image) -> bytes | None:
    """EXIF of an opened image as a clean TIFF block, or None."""
    if image.format in ("TIFF", "MPO") or "exif" not in image.info:
        return _rebuilt_exif(image)
    return clean_exif(image.info["exif"])


def _rebuilt_exif(image: Image.Image) -> bytes | None:
    try:
        source = image.getexif()
        kept = Image.Exif()
        for tag in _DESCRIPTIVE_TAGS:
            if tag in source:
                kept[tag] = source[tag]
        for tag in _SUB_DIRECTORIES:
            entries = source.get_ifd(tag)
            if entries:
                kept.get_ifd(tag).update(entries)
                kept[tag] = kept.get_ifd(tag)
        return clean_exif(kept.tobytes()) if len(kept) else None
    except (OSError, SyntaxError, ValueError, struct.error, KeyError, TypeError, AttributeError):
        return None


def xmp_of(image: Image.Image) -> bytes | None:
    """XMP packet of an opened image with its orientation set to 1, or None."""
    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp")
    if isinstance(packet, str):
        packet = packet.encode("utf-8")
    if isinstance(packet, (tuple, list)):
        packet = bytes(packet)
    return _XMP_ORIENTATION.sub(rb"\g<1>1", packet) if packet else None


def dpi_of(image: Image.Image) -> tuple[float, float] | None:
    """Resolution in pixels per inch, or None where it is absent or no positive number."""
    value = image.info.get("dpi")
    try:
        horizontal, vertical = (float(part) for part in value)  # type: ignore[union-attr]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    sane = all(0 < part < 1e6 for part in (horizontal, vertical))
    return (horizontal, vertical) if sane else None
