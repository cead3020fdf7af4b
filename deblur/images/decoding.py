"""Bytes, paths, Pillow images and arrays to a Picture."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from deblur.errors import CorruptImage, ImageError, ImageTooLarge, UnsupportedImage
from deblur.images import colour, deep, heif, metadata
from deblur.images.picture import Limits, Picture, Source

# Opened through these classes, not Image.open: the pixel limit is ours (Pillow's is a global, and a
# warning), and formats that start other programs (EPS) or that nobody photographs in are out.
_READERS: dict[str, Any] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
}
_READ = "PNG, JPEG, WebP, TIFF, AVIF, HEIC (extra), GIF, BMP, PPM"
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
# What Pillow and its plugins raise on damaged files; Warning for programs that turn warnings into errors.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    RuntimeError,  # what the AVIF decoder raises
    OverflowError,
    struct.error,
    Warning,
)
# Pillow's own limit, kept on frames that reach beyond the picture that the header tells of.
_TOO_LARGE = (MemoryError, Image.DecompressionBombError)
_STORED_LOSSY = ("JPEG", "AVIF", "HEIF")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a picture's header says.

    Attributes:
        format: Family, as in `Picture.format`.
        width: As stored, before the orientation is applied, px.
        height: As stored, px.
        frames: Frames of an animation or pages; 1 for a still picture.
    """

    format: str
    width: int
    height: int
    frames: int = 1


def probe(source: bytes | str | Path, limits: Limits | None = None, name: str | None = None) -> Header:
    """Reads the header alone and checks it against the limits; no pixel is decoded.

    Args:
        source: File content or path.
        limits: What to refuse; the defaults of `Limits` when None.
        name: What messages call the picture; by default its path, or "picture".

    Raises:
        ImageError: As in `decode`.
    """
    data, called = _content(source, limits or Limits())
    name = name or called
    return _checked_header(_open(data, name), name, limits or Limits())


def decode(source: Source, limits: Limits | None = None, name: str | None = None) -> Picture:
    """Decodes any picture that is read here.

    Args:
        source: File content, path, Pillow image, or array (H, W), (H, W, 1), (H, W, 2), (H, W, 3) or (H, W,
            4): grey, grey and alpha, RGB, RGBA; uint8, uint16, or float in [0, 1] (kept with 16 bits).
        limits: What to refuse before decoding; the defaults of `Limits` when None.
        name: What messages call the picture; by default its path, or "picture".

    Returns:
        The picture, upright.

    Raises:
        ImageTooLarge: Over a limit; known from the header.
        UnsupportedImage: No picture, or of a kind that is not read here.
        CorruptImage: A picture that cannot be decoded to its end.
        ImageError: The file cannot be read at all.
    """
    limits = limits or Limits()
    if isinstance(source, np.ndarray):
        return _from_array(source, limits)
    if isinstance(source, Image.Image):
        name = name or "picture"
        _check(Header(format="PNG", width=source.width, height=source.height), name, limits)
        return _from_pillow(source, b"", name)
    if not isinstance(source, (bytes, bytearray, memoryview, str, Path)):
        raise UnsupportedImage(f"expected bytes, path, Pillow image or array, got {type(source).__name__}")
    data, called = _content(source, limits)
    name = name or called
    opened = _open(data, name)
    header = _checked_header(opened, name, limits)
    if isinstance(opened, heif.HeifImage):
        return heif.to_picture(opened, name)
    picture = _from_pillow(opened, data, name)
    return _with_frame_warnings(picture, opened, header)


def _content(source: Any, limits: Limits) -> tuple[bytes, str]:
    if isinstance(source, (str, Path)):
        return read_file(Path(source), limits), str(source)
    data = bytes(source)
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(f"picture: {len(data)} bytes, at most {limits.max_bytes} are allowed")
    return data, "picture"


def read_file(path: Path, limits: Limits | None = None) -> bytes:
    """The content of a file, at most `limits.max_bytes` of it read.

    Raises:
        ImageTooLarge: The file is larger.
        ImageError: It cannot be read; says why.
    """
    limits = limits or Limits()
    try:
        if path.is_dir():
            raise UnsupportedImage(f"{path}: expected a picture file, got a folder")
        with path.open("rb") as stream:
            data = stream.read(limits.max_bytes + 1)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(f"{path}: more than the {limits.max_bytes} bytes allowed")
    return data


def sniff(data: bytes) -> str | None:
    """Family by the first bytes of the content, or None; names are never trusted."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:4] in (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"):
        return "TIFF"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if data[:2] == b"BM" and len(data) > 25:
        return "BMP"
    if data[:2] in (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6") and data[2:3].isspace():
        return "PPM"
    return _sniff_iso_media(data)


def _sniff_iso_media(data: bytes) -> str | None:
    if data[4:8] != b"ftyp":
        return None
    size = min(max(int.from_bytes(data[:4], "big"), 16), 256)
    brands = [data[8:12]] + [data[at : at + 4] for at in range(16, size, 4)]
    if b"avif" in brands or b"avis" in brands:
        return "AVIF"
    return "HEIF" if any(brand in _HEIF_BRANDS for brand in brands) else None


def _open(data: bytes, name: str) -> Any:
    if not data:
        raise UnsupportedImage(f"{name}: the file is empty")
    family = sniff(data)
    if family is None:
        begins = bytes(data[:8]).hex(" ")
        raise UnsupportedImage(f"{name}: no picture that is read here ({_READ}); its first bytes are {begins}")
    if family == "HEIF":
        return heif.open_heif(data, name)
    try:
        return _READERS[family](BytesIO(data))
    except _TOO_LARGE as error:
        raise ImageTooLarge(f"{name}: a frame is too large ({error})") from error
    except _BROKEN as error:
        raise CorruptImage(f"{name}: the {family} header cannot be read ({error})") from error


def _checked_header(opened: Any, name: str, limits: Limits) -> Header:
    try:
        frames = int(getattr(opened, "n_frames", 1))
    except _TOO_LARGE as error:
        raise ImageTooLarge(f"{name}: a frame is too large ({error})") from error
    except _BROKEN as error:
        raise CorruptImage(f"{name}: the frames cannot be counted ({error})") from error
    header = Header(format=opened.format, width=opened.width, height=opened.height, frames=frames)
    _check(header, name, limits)
    return header


def _check(header: Header, name: str, limits: Limits) -> None:
    size = f"{header.width} x {header.height}"
    if header.width < 1 or header.height < 1:
        raise CorruptImage(f"{name}: {size} pixels, expected at least one")
    if max(header.width, header.height) > limits.max_side_px:
        raise ImageTooLarge(f"{name}: {size} pixels, a side may have at most {limits.max_side_px}")
    pixels = header.width * header.height * header.frames
    if pixels > limits.max_pixels:
        frames = f" in {header.frames} frames" if header.frames > 1 else ""
        raise ImageTooLarge(f"{name}: {size} pixels{frames}, at most {limits.max_pixels} pixels are allowed")


def _from_pillow(image: Image.Image, data: bytes, name: str) -> Picture:
    try:
        bits = deep.bits_of(image, data)
        ppm_peak = deep.ppm_peak(image) if data and image.format == "PPM" else 65535
        image.load()
        # Read after loading: a PNG may carry them behind its pixels.
        turn = metadata.orientation_of(image)
        exif, xmp, dpi = metadata.exif_of(image), metadata.xmp_of(image), metadata.dpi_of(image)
        if bits in (12, 16):
            levels, alpha, grey, icc, warnings = deep.levels_of(image, data, name, ppm_peak)
        else:
            levels, alpha, grey, icc, warnings = colour.levels_of(image, name)
    except _TOO_LARGE as error:
        raise ImageTooLarge(f"{name}: {image.width} x {image.height} pixels do not fit in memory") from error
    except _BROKEN as error:
        raise CorruptImage(f"{name}: damaged or cut short ({error})") from error
    family = image.format if image.format in _READERS else "JPEG" if image.format == "MPO" else "PNG"
    return Picture(
        levels=metadata.upright(levels, turn),
        alpha=None if alpha is None else metadata.upright(alpha, turn),
        grey=grey,
        format=family,
        lossless=_is_lossless(family, data),
        icc=icc or None,
        exif=exif,
        xmp=xmp,
        dpi=dpi if turn < 5 or dpi is None else (dpi[1], dpi[0]),
        warnings=warnings,
    )


def _is_lossless(family: str, data: bytes) -> bool:
    if family == "WEBP":
        return _is_lossless_webp(data)
    return family not in _STORED_LOSSY


def _is_lossless_webp(data: bytes) -> bool:
    """Whether the first frame is a VP8L chunk (WebP Container Specification)."""
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if kind in (b"VP8L", b"VP8 "):
            return kind == b"VP8L"
        at += 24 if kind == b"ANMF" else 8 + size + size % 2
    return False


def _with_frame_warnings(picture: Picture, opened: Any, header: Header) -> Picture:
    notes = list(picture.warnings)
    if header.frames > 1:
        kind = "pages" if header.format == "TIFF" else "animation"
        notes.append(f"{kind}: first of {header.frames} frames used, the others are left out")
    if header.format == "JPEG" and "mp" in opened.info:
        notes.append("a second picture inside the file (depth, gain map or stereo) is left out")
    return replace(picture, warnings=tuple(notes))


def _from_array(array: np.ndarray, limits: Limits) -> Picture:
    channels = 1 if array.ndim == 2 else array.shape[2] if array.ndim == 3 else 0
    if channels not in (1, 2, 3, 4) or array.size == 0:
        raise UnsupportedImage(f"expected an array (H, W) or (H, W, 1 to 4) with pixels, got {array.shape}")
    _check(Header(format="PNG", width=array.shape[1], height=array.shape[0]), "array", limits)
    pixels = _integer_levels(array).reshape(array.shape[0], array.shape[1], channels)
    grey = channels < 3
    levels = np.repeat(pixels[..., :1], 3, axis=2) if grey else np.ascontiguousarray(pixels[..., :3])
    alpha = np.ascontiguousarray(pixels[..., -1]) if channels in (2, 4) else None
    return Picture(levels=levels, alpha=alpha, grey=grey)


def _integer_levels(array: np.ndarray) -> np.ndarray:
    native = array.dtype.newbyteorder("=")
    if native in (np.uint8, np.uint16):
        return array.astype(native, copy=False)
    if np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if low < 0.0 or high > 1.0 or np.isnan(low):
            raise UnsupportedImage(f"expected float levels in [0, 1], got {low:g} to {high:g}")
        return (array.astype(np.float64) * 65535.0 + 0.5).astype(np.uint16)
    raise UnsupportedImage(f"expected uint8, uint16 or float levels, got {array.dtype}")


if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("deblur reads 16-bit pictures on little-endian machines only")
