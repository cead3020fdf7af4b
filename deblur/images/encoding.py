"""A Picture to bytes, or to the kind of value that came in."""

from __future__ import annotations

import logging
import struct
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from deblur.errors import OptionError, OutputError
from deblur.images import colour, deep, heif
from deblur.images.metadata import EXIF_PREFIX
from deblur.images.picture import Picture, Source

_log = logging.getLogger("deblur.images")
_WRITTEN = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF", "HEIF", "BMP", "PPM")
_ALIASES = {
    **dict.fromkeys(("JPG", "JPE", "JFIF"), "JPEG"),
    **dict.fromkeys(("HEIC", "HIF"), "HEIF"),
    **dict.fromkeys(("PGM", "PNM", "PBM"), "PPM"),
    "TIF": "TIFF",
    "APNG": "PNG",
    "DIB": "BMP",
}
_DEEP = ("PNG", "TIFF", "PPM")
_NO_ALPHA = ("JPEG", "BMP", "PPM")
_NO_ICC = ("BMP", "PPM")
_LOSSLESS = ("PNG", "TIFF", "BMP", "PPM")
_DEFAULT_QUALITY = {"JPEG": 95, "WEBP": 95, "AVIF": 90, "HEIF": 90}
_LONGEST_SIDE = {"JPEG": 65_500, "WEBP": 16_383, "AVIF": 65_536}
_JPEG_EXIF_BYTES = 65_533 - len(EXIF_PREFIX)


def output_format(picture: Picture, format: str | None = None) -> str:
    """Family that a picture is written in.

    Args:
        picture: The picture.
        format: A name such as "png", "jpg", "JPEG", "webp", "tiff", "avif"; None or "keep" for the source's
            own. A source family that cannot hold the picture becomes PNG: GIF (256 colours), BMP and PPM
            with alpha, BMP with 16 bits.

    Raises:
        OptionError: Another name.
    """
    if format is None or format.lower() == "keep":
        needs_more = picture.alpha is not None or (picture.format == "BMP" and picture.max_level > 255)
        if picture.format == "GIF" or (picture.format in ("BMP", "PPM") and needs_more):
            return "PNG"
        return picture.format
    return family_of(format)


def family_of(name: str) -> str:
    """The family that a name or a suffix stands for: "jpg", ".JPEG" and "jpeg" are "JPEG".

    Raises:
        OptionError: Not a format that is written here.
    """
    plain = name.upper().lstrip(".")
    family = _ALIASES.get(plain, plain)
    if family not in _WRITTEN:
        raise OptionError(f"format: expected keep or one of {', '.join(_WRITTEN).lower()}, got {name!r}")
    return family


def is_lossless(picture: Picture, family: str, quality: int | None = None) -> bool:
    """Whether writing the picture in that family keeps every level (see `encode`)."""
    if family == "WEBP":
        return quality is None and picture.format == "WEBP" and picture.lossless
    return family in _LOSSLESS


def encode(picture: Picture, format: str | None = None, quality: int | None = None) -> bytes:
    """Encodes a picture with its alpha, grey, depth, ICC profile, EXIF, XMP and resolution where the format
    can.

    PNG, TIFF, BMP, PPM, and WebP that came from lossless WebP are lossless. Formats of 8 bits round 16-bit
    levels; formats without alpha get a white background; formats without ICC profiles get sRGB.

    Args:
        picture: The picture.
        format: As in `output_format`.
        quality: 1 to 100 for JPEG (95 by default), WebP (95), AVIF and HEIF (90); ignored by lossless
            formats.

    Returns:
        The file's content.

    Raises:
        OptionError: Unknown format, or a quality out of range.
        OutputError: The format cannot hold the picture, or its encoder failed.
    """
    if quality is not None and not (isinstance(quality, int) and 1 <= quality <= 100):
        raise OptionError(f"quality: expected a whole number from 1 to 100, got {quality!r}")
    family = output_format(picture, format)
    longest = _LONGEST_SIDE.get(family, 2**31)
    if max(picture.width, picture.height) > longest:
        raise OutputError(
            f"{family} holds at most {longest} px a side, got {picture.width} x {picture.height}; use PNG"
        )
    picture = _fitted(picture, family)
    try:
        if family == "TIFF" or picture.max_level > 255:
            return _encode_here(picture, family)
        return _encode_with_pillow(picture, family, quality)
    except (OSError, ValueError, RuntimeError, SyntaxError, struct.error, KeyError, TypeError) as error:
        raise OutputError(f"the {family} encoder failed: {error}") from error


def _fitted(picture: Picture, family: str) -> Picture:
    """The picture without what the family cannot hold."""
    if picture.max_level > 255 and family not in _DEEP:
        picture = replace(picture, levels=_to_8_bits(picture.levels), alpha=_to_8_bits(picture.alpha))
    if picture.alpha is not None and family in _NO_ALPHA:
        picture = _on_white(picture)
    if picture.icc is None:
        return picture
    written_grey = picture.grey and family not in ("WEBP", "AVIF", "HEIF")
    if family in _NO_ICC or (colour.profile_space(picture.icc) == "GRAY" and not written_grey):
        return _in_srgb(picture)
    return picture


def _to_8_bits(levels: Any) -> Any:
    if levels is None:
        return None
    return ((levels.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _on_white(picture: Picture) -> Picture:
    peak = picture.max_level
    alpha = picture.alpha
    assert alpha is not None
    weight = alpha[..., None].astype(np.float32) / peak
    levels = picture.levels * weight + peak * (1.0 - weight)
    return replace(picture, levels=(levels + 0.5).astype(picture.levels.dtype), alpha=None)


def _in_srgb(picture: Picture) -> Picture:
    assert picture.icc is not None
    if picture.max_level > 255:
        _log.warning("the ICC profile is dropped: 16-bit levels cannot be converted and the format has no place for it")
        return replace(picture, icc=None)
    grey_space = colour.profile_space(picture.icc) == "GRAY"
    pixels = picture.levels[..., 0] if grey_space else picture.levels
    converted = colour.profile_to_srgb(Image.fromarray(np.ascontiguousarray(pixels)), picture.icc)
    if converted is None:
        return replace(picture, icc=None)
    return replace(picture, levels=np.array(converted), icc=None)


def _channels(picture: Picture) -> np.ndarray:
    """(H, W, C): grey, grey and alpha, RGB, or RGBA."""
    colours = picture.levels[..., :1] if picture.grey else picture.levels
    if picture.alpha is None:
        return np.ascontiguousarray(colours)
    return np.concatenate([colours, picture.alpha[..., None]], axis=2)


def _encode_here(picture: Picture, family: str) -> bytes:
    channels = _channels(picture)
    if family == "TIFF":
        return deep.tiff_bytes(channels, icc=picture.icc, exif=picture.exif, xmp=picture.xmp, dpi=picture.dpi)
    if family == "PNG":
        chunks = deep.png_metadata(picture.icc, picture.exif, picture.xmp, picture.dpi)
        return deep.png_bytes(channels, chunks)
    kind = b"P5" if picture.grey else b"P6"
    return kind + b"\n%d %d\n65535\n" % (picture.width, picture.height) + channels.astype(">u2").tobytes()


def _encode_with_pillow(picture: Picture, family: str, quality: int | None) -> bytes:
    image = _pillow_image(picture)
    options: dict[str, Any] = {}
    if picture.icc and family not in _NO_ICC:
        options["icc_profile"] = picture.icc
    if picture.dpi and family in ("PNG", "JPEG", "BMP"):
        options["dpi"] = picture.dpi
    if picture.exif and family in ("PNG", "JPEG", "WEBP", "AVIF", "HEIF"):
        options["exif"] = EXIF_PREFIX + picture.exif
    if picture.xmp and family in ("JPEG", "WEBP", "AVIF", "HEIF"):
        options["xmp"] = picture.xmp
    options.update(_quality_options(picture, family, quality))
    if family == "PNG" and picture.xmp:
        information = PngImagePlugin.PngInfo()
        information.add_itxt("XML:com.adobe.xmp", picture.xmp.decode("utf-8", "replace"))
        options["pnginfo"] = information
    if family == "JPEG":
        _drop_what_jpeg_cannot_hold(options)
    if family == "HEIF":
        heif.heif_library("output").register_heif_opener()
    stream = BytesIO()
    image.save(stream, format=family, **options)
    return stream.getvalue()


def _quality_options(picture: Picture, family: str, quality: int | None) -> dict[str, Any]:
    if family not in _DEFAULT_QUALITY:
        return {}
    if is_lossless(picture, family, quality):
        return {"lossless": True, "exact": True}  # exact: colours under full transparency too
    value = _DEFAULT_QUALITY[family] if quality is None else quality
    options: dict[str, Any] = {"quality": value}
    if family == "JPEG":
        options["subsampling"] = 0 if value >= 90 else 2
    if family == "AVIF":
        options.update(speed=8, subsampling="4:4:4" if value >= 90 else "4:2:0")
    return options


def _drop_what_jpeg_cannot_hold(options: dict[str, Any]) -> None:
    for key, most in (("exif", _JPEG_EXIF_BYTES), ("xmp", 65_504)):
        if len(options.get(key, b"")) > most:
            _log.warning("%s of %d bytes is dropped: JPEG holds at most %d", key, len(options[key]), most)
            del options[key]


def _pillow_image(picture: Picture) -> Image.Image:
    channels = _channels(picture)
    return Image.fromarray(channels[..., 0] if channels.shape[2] == 1 else channels)


def to_pillow(picture: Picture) -> Image.Image:
    """A Pillow image with the profile, EXIF and resolution in its info, so that saving it keeps them.

    16-bit grey without alpha becomes mode "I;16"; Pillow has no mode for other 16-bit pictures, which get 8
    bits.
    """
    if picture.max_level > 255 and not (picture.grey and picture.alpha is None):
        picture = replace(picture, levels=_to_8_bits(picture.levels), alpha=_to_8_bits(picture.alpha))
    image = _pillow_image(picture)
    entries = {"icc_profile": picture.icc, "exif": picture.exif, "xmp": picture.xmp, "dpi": picture.dpi}
    image.info.update({key: value for key, value in entries.items() if value})
    return image


def like(source: Source, picture: Picture) -> Any:
    """The picture as the kind of value that `source` is.

    Args:
        source: What was given to `decode`.
        picture: What to give back, of the same size.

    Returns:
        bytes for bytes (same format where it can be written), a Pillow image for a Pillow image or a path,
        and for an array an array of the same shape, channels and dtype.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return encode(picture)
    if isinstance(source, np.ndarray):
        return _like_array(source, picture)
    if isinstance(source, (str, Path, Image.Image)):
        return to_pillow(picture)
    raise TypeError(f"expected bytes, a path, a Pillow image or an array, got {type(source).__name__}")


def _like_array(source: np.ndarray, picture: Picture) -> np.ndarray:
    pixels = _channels(picture).reshape(source.shape)
    if np.issubdtype(source.dtype, np.floating):
        return (pixels.astype(np.float64) / picture.max_level).astype(source.dtype)
    return pixels.astype(source.dtype, copy=False)
