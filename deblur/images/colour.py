"""8-bit Pillow modes to RGB levels, and ICC profiles."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image, ImageCms

from deblur.errors import UnsupportedImage

Levels = tuple[np.ndarray, "np.ndarray | None", bool, "bytes | None", tuple[str, ...]]


def levels_of(image: Image.Image, name: str) -> Levels:
    """Levels (H, W, 3) uint8, alpha, grey, ICC profile and warnings of a loaded 8-bit image.

    Raises:
        UnsupportedImage: 32-bit integer or float pixels.
    """
    profile = image.info.get("icc_profile")
    if image.mode in ("CMYK", "LAB"):
        converted, warnings = _to_srgb(image, profile)
        return _split(converted, None, warnings)
    if image.mode in ("I", "F"):
        raise UnsupportedImage(f"{name}: pixels of 32 bits are not read; expected 8 or 16 (convert it first)")
    return _split(_plain(image), profile, ())


def _plain(image: Image.Image) -> Image.Image:
    """The image in one of the modes L, LA, RGB, RGBA, with the same colours."""
    transparent = "transparency" in image.info
    if image.mode in ("L", "LA", "RGB", "RGBA") and not transparent:
        return image
    if image.mode in ("1", "L"):
        return _keyed_grey(image) if transparent else image.convert("L")
    if image.mode == "La":
        return image.convert("LA")
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if transparent or image.mode == "PA" else "RGB")
    if image.mode in ("RGBa",) or transparent:
        return image.convert("RGBA")
    return image.convert("RGB")


def _keyed_grey(image: Image.Image) -> Image.Image:
    """LA of a grey image one level of which is declared transparent (PNG tRNS)."""
    luma = np.asarray(image.convert("L"))
    key = image.info["transparency"]
    if image.mode == "1" and isinstance(key, int):
        key = 255 if key else 0
    alpha = np.where(luma == key, 0, 255).astype(np.uint8)
    return Image.fromarray(np.stack([luma, alpha], axis=2))


def _split(image: Image.Image, profile: bytes | None, warnings: tuple[str, ...]) -> Levels:
    pixels = np.asarray(image)
    if image.mode in ("L", "LA"):
        luma = pixels if pixels.ndim == 2 else pixels[..., 0]
        alpha = None if pixels.ndim == 2 else np.ascontiguousarray(pixels[..., 1])
        return np.repeat(luma[..., None], 3, axis=2), alpha, True, profile, warnings
    alpha = np.ascontiguousarray(pixels[..., 3]) if image.mode == "RGBA" else None
    return np.ascontiguousarray(pixels[..., :3]), alpha, False, profile, warnings


def _to_srgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, tuple[str, ...]]:
    if image.mode == "LAB":
        source = ImageCms.createProfile("LAB")
        target = ImageCms.createProfile("sRGB")
        return _must(ImageCms.profileToProfile(image, source, target, outputMode="RGB")), ()
    if profile:
        converted = profile_to_srgb(image, profile)
        if converted is not None:
            return converted, ()
        return image.convert("RGB"), ("the ICC profile cannot be used: colours converted without it",)
    return image.convert("RGB"), ()


def profile_to_srgb(image: Image.Image, profile: bytes) -> Image.Image | None:
    """The image converted from its ICC profile to sRGB (mode RGB), or None where the profile cannot be
    used."""
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        target = ImageCms.createProfile("sRGB")
        return _must(ImageCms.profileToProfile(image, source, target, outputMode="RGB"))
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def _must(image: Image.Image | None) -> Image.Image:
    if image is None:
        raise ValueError("colour conversion returned nothing")
    return image


def profile_space(profile: bytes) -> str:
    """Colour space that a profile is for: "RGB", "GRAY", "CMYK", ... (ICC.1:2022, section 7.2.6)."""
    return profile[16:20].decode("ascii", "replace").strip()
