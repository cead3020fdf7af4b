"""16-bit pictures: Pillow has no mode for 16-bit colour, so OpenCV reads it and PNG and TIFF are written
here."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin

from deblur.errors import CorruptImage, UnsupportedImage
from deblur.images.colour import Levels

_BITS, _PHOTOMETRIC, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 258, 262, 338, 339
_PNG_COLOUR_TYPE = {(True, False): 0, (False, False): 2, (True, True): 4, (False, True): 6}


def bits_of(image: Image.Image, data: bytes) -> int:
    """Bits a channel of an opened, not yet loaded image.

    Args:
        image: The image.
        data: The file it came from; empty where it is not known, and then Pillow's mode decides.
    """
    if image.mode.startswith("I;16"):
        return 16
    if not data:
        return 8
    if image.format == "PNG":
        return data[24]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return max(image.tag_v2.get(_BITS, (1,)))
    if image.format == "PPM":
        return 16 if image.mode == "I" or ppm_peak(image) > 255 else 8
    return 8


def ppm_peak(image: Any) -> int:
    """The level that stands for white in an opened, not yet loaded PPM file."""
    arguments = image.tile[0][3]
    return int(arguments[1]) if isinstance(arguments, tuple) and len(arguments) > 1 else 255


def levels_of(image: Image.Image, data: bytes, name: str, white: int = 65535) -> Levels:
    """Levels (H, W, 3) uint16, alpha, grey, ICC profile and warnings of a loaded image of 16 bits.

    Args:
        image: Loaded by Pillow, which so has checked that the file is whole.
        data: The file.
        name: For messages.
        white: The level that stands for white in a PPM file.

    Raises:
        UnsupportedImage: Signed or 12-bit and other odd levels.
        CorruptImage: OpenCV cannot read it.
    """
    profile = image.info.get("icc_profile")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        _refuse_odd_tiff(image, name)
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.uint16)
        if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == 0:
            pixels = 65535 - pixels
        return np.repeat(pixels[..., None], 3, axis=2), _keyed_alpha(image, pixels), True, profile, ()
    pixels = _read_with_opencv(data, name)
    if image.format == "PPM" and white != 65535:
        pixels = ((pixels.astype(np.uint32) * 65535 + white // 2) // white).clip(0, 65535).astype(np.uint16)
    if pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2), None, True, profile, ()
    alpha = np.ascontiguousarray(pixels[..., 3]) if pixels.shape[2] == 4 else None
    grey = image.format == "PNG" and data[25] in (0, 4)
    notes = ("alpha is stored premultiplied and is kept so",) if _is_premultiplied(image) else ()
    return np.ascontiguousarray(pixels[..., 2::-1]), alpha, grey, profile, notes


def _refuse_odd_tiff(image: TiffImagePlugin.TiffImageFile, name: str) -> None:
    bits, kinds = image.tag_v2.get(_BITS, (1,)), image.tag_v2.get(_SAMPLE_FORMAT, (1,))
    if set(bits) != {16} or set(kinds) != {1}:
        raise UnsupportedImage(f"{name}: TIFF with {bits} bits of kind {kinds}; expected 8 or 16 bits unsigned")


def _keyed_alpha(image: Image.Image, pixels: np.ndarray) -> np.ndarray | None:
    key = image.info.get("transparency")
    return np.where(pixels == key, 0, 65535).astype(np.uint16) if isinstance(key, int) else None


def _is_premultiplied(image: Image.Image) -> bool:
    return isinstance(image, TiffImagePlugin.TiffImageFile) and 1 in image.tag_v2.get(_EXTRA_SAMPLES, ())


def _read_with_opencv(data: bytes, name: str) -> np.ndarray:
    import cv2

    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise CorruptImage(f"{name}: 16-bit pixels cannot be decoded ({error})") from error
    if pixels is None or pixels.dtype != np.uint16:
        raise CorruptImage(f"{name}: 16-bit pixels cannot be decoded")
    return pixels


def png_bytes(channels: np.ndarray, chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A 16-bit PNG file.

    Args:
        channels: (H, W, C) uint16; 1 to 4 channels: grey, grey and alpha, RGB, RGBA.
        chunks: Type and content of chunks that go before the pixels.

    Returns:
        The file (W3C PNG, third edition). Every row uses the filter "up".
    """
    height, width, count = channels.shape
    rows = np.ascontiguousarray(channels.astype(">u2")).view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    colour_type = _PNG_COLOUR_TYPE[count < 3, count % 2 == 0]
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    body = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(filtered.data, 4)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, content) for kind, content in body)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_metadata(
    icc: bytes | None, exif: bytes | None, xmp: bytes | None, dpi: tuple[float, float] | None
) -> list[tuple[bytes, bytes]]:
    """The chunks that carry metadata in a PNG file."""
    chunks = []
    if icc:
        chunks.append((b"iCCP", b"ICC Profile\x00\x00" + zlib.compress(icc)))
    if dpi:
        per_metre = [min(round(value / 0.0254), 2**31 - 1) for value in dpi]
        chunks.append((b"pHYs", struct.pack(">IIB", *per_metre, 1)))
    if xmp:
        chunks.append((b"iTXt", b"XML:com.adobe.xmp\x00\x00\x00\x00\x00" + xmp))
    if exif:
        chunks.append((b"eXIf", exif))
    return chunks


def tiff_bytes(
    channels: np.ndarray,
    *,
    icc: bytes | None,
    exif: bytes | None,
    xmp: bytes | None,
    dpi: tuple[float, float] | None,
) -> bytes:
    """A TIFF file of 8 or 16 bits, deflated with the horizontal predictor (TIFF 6.0, section 14).

    Args:
        channels: (H, W, C) uint8 or uint16; 1 to 4 channels: grey, grey and alpha, RGB, RGBA.
        icc: ICC profile.
        exif: EXIF as a TIFF block.
        xmp: XMP packet.
        dpi: Pixels per inch.
    """
    height, width, count = channels.shape
    differences = channels.astype(channels.dtype.newbyteorder("<"))
    differences[:, 1:] = channels[:, 1:] - channels[:, :-1]
    strip = zlib.compress(np.ascontiguousarray(differences).data, 4)
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    _copy_exif(directory, exif)
    tags: dict[int, Any] = {
        256: width,
        257: height,
        _BITS: (channels.dtype.itemsize * 8,) * count,
        259: 8,
        _PHOTOMETRIC: 1 if count < 3 else 2,
        273: 0,
        274: 1,
        277: count,
        278: height,
        279: len(strip),
        317: 2,
        _SAMPLE_FORMAT: (1,) * count,
    }
    if count % 2 == 0:
        tags[_EXTRA_SAMPLES] = 2
    if dpi:
        tags.update({282: dpi[0], 283: dpi[1], 296: 2})
    for tag, value in tags.items():
        directory[tag] = value
    for tag, block in ((34675, icc), (700, xmp)):
        if block:
            directory.tagtype[tag] = 7
            directory[tag] = block
    stream = BytesIO()
    directory.save(stream)
    return stream.getvalue() + strip


def _copy_exif(directory: TiffImagePlugin.ImageFileDirectory_v2, exif: bytes | None) -> None:
    if not exif:
        return
    source = Image.Exif()
    source.load(exif)
    for tag, value in source.items():
        if tag not in (34665, 34853, 40965):
            directory[tag] = value
    for tag in (34665, 34853):
        entries = source.get_ifd(tag)
        if entries:
            directory[tag] = dict(entries)
