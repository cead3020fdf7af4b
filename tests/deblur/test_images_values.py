"""Value in is value out; levels survive the way to tensors and files and back."""

import contextlib
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from deblur.errors import ImageError, OptionError, OutputError, UnsupportedImage
from deblur.images import Limits, Picture, decode, encode, like, output_format, to_levels, to_tensor

RNG = np.random.default_rng(3)
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4))


@given(pixels=st.one_of(arrays(np.uint8, SHAPES), arrays(np.uint16, SHAPES)))
@settings(max_examples=40, deadline=None)
def test_png_round_trip_is_exact(pixels):
    picture = decode(pixels)
    again = decode(encode(picture, "png"))
    assert np.array_equal(again.levels, picture.levels)
    assert again.levels.dtype == pixels.dtype
    assert again.grey == picture.grey
    assert (again.alpha is None) == (picture.alpha is None)
    assert picture.alpha is None or np.array_equal(again.alpha, picture.alpha)


@given(pixels=arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12), st.just(3))))
@settings(max_examples=20, deadline=None)
def test_other_lossless_round_trips_are_exact(pixels):
    for format in ("tiff", "bmp", "ppm"):
        assert np.array_equal(decode(encode(decode(pixels), format)).levels, pixels)


def test_lossless_webp_stays_lossless():
    pixels = RNG.integers(0, 256, (20, 31, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP", lossless=True)
    assert np.array_equal(decode(encode(decode(stream.getvalue()))).levels, pixels)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_every_level_survives_the_tensor(dtype):
    levels = np.arange(np.iinfo(dtype).max + 1, dtype=dtype)
    levels = np.repeat(levels.reshape(1, -1, 1), 3, axis=2)
    tensor = to_tensor(levels)
    assert tensor.shape == (3, *levels.shape[:2])
    assert tensor.dtype == torch.float32
    assert (tensor.min(), tensor.max()) == (0, 1)
    assert np.array_equal(to_levels(tensor, dtype), levels)


def test_levels_are_clipped_and_rounded_never_wrapped():
    values = torch.tensor([-3.0, -1e-6, 0.4 / 255, 0.6 / 255, 1.0, 1.01, 300.0, float("inf")])
    levels = to_levels(values.expand(3, 1, -1))
    assert levels[0, :, 0].tolist() == [0, 0, 0, 1, 255, 255, 255, 255]


def test_nan_is_no_level():
    with pytest.raises(ValueError, match="NaN"):
        to_levels(torch.full((3, 2, 2), float("nan")))


def test_bad_shapes_are_named():
    with pytest.raises(ValueError, match="float64"):
        to_tensor(np.zeros((4, 4, 3)))
    with pytest.raises(ValueError, match=r"\(1, 4, 4\)"):
        to_levels(torch.zeros(1, 4, 4))
    picture = decode(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=r"\(5, 4, 3\)"):
        picture.with_levels(np.zeros((5, 4, 3), np.uint8))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, ">u2"])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)])
def test_arrays_come_back_as_they_were(shape, dtype):
    if np.issubdtype(np.dtype(dtype), np.floating):
        array = RNG.random(shape).astype(dtype)
    else:
        array = RNG.integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)
    out = like(array, decode(array))
    assert out.shape == array.shape
    assert out.dtype == array.dtype
    tolerance = 1e-5 if np.issubdtype(array.dtype, np.floating) else 0
    assert np.abs(out.astype(np.float64) - array).max() <= tolerance


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((4, 4), bool),
        np.full((4, 4), np.nan),
        np.full((4, 4), 255.0),
    ],
)
def test_arrays_that_are_no_picture(array):
    with pytest.raises(UnsupportedImage, match="expected"):
        decode(array)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16"])
def test_pillow_images_come_back_in_their_mode(mode):
    if mode == "I;16":
        image = Image.fromarray(RNG.integers(0, 65536, (5, 7)).astype(np.uint16))
    else:
        image = Image.fromarray(RNG.integers(0, 256, (5, 7, 4), dtype=np.uint8)).convert(mode)
    out = like(image, decode(image))
    assert out.mode == mode
    assert np.array_equal(np.asarray(out), np.asarray(image))


def test_pillow_image_keeps_its_metadata_and_turns_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.new("RGB", (8, 4)).save(stream, "PNG", exif=exif, dpi=(300, 150))
    image = Image.open(io.BytesIO(stream.getvalue()))
    out = like(image, decode(image))
    assert out.size == (4, 8)
    assert [round(value) for value in out.info["dpi"]] == [150, 300]
    assert out.getexif().get(0x0112, 1) == 1


def test_bytes_come_back_in_their_format(tmp_path):
    for format in ("PNG", "JPEG", "WEBP", "TIFF", "AVIF", "BMP", "PPM"):
        data = encode(decode(np.zeros((6, 5, 3), np.uint8)), format)
        assert decode(like(data, decode(data))).format == format
    path = tmp_path / "a.png"
    path.write_bytes(encode(decode(np.zeros((6, 5, 3), np.uint8))))
    assert like(path, decode(path)).size == (5, 6)
    with pytest.raises(TypeError):
        like(5, decode(path))


@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_metadata_survives(format, dtype):
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif.get_ifd(0x8769)[0x9003] = "2026:01:02 03:04:05"
    picture = Picture(
        levels=np.zeros((6, 5, 3), dtype), exif=exif.tobytes()[6:], xmp=b"<x:xmpmeta/>", dpi=(300.0, 300.0)
    )
    again = decode(encode(picture, format))
    read = Image.Exif()
    read.load(again.exif)
    assert read[0x010F] == "Maker"
    assert read.get_ifd(0x8769)[0x9003] == "2026:01:02 03:04:05"
    assert again.xmp == b"<x:xmpmeta/>"
    assert [round(value) for value in again.dpi] == [300, 300]


def test_transparent_parts_become_white_where_there_is_no_alpha():
    pixels = np.dstack([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint8)])
    assert decode(encode(decode(pixels), "jpeg")).levels.min() >= 254


def test_bad_options():
    picture = decode(np.zeros((6, 5, 3), np.uint8))
    for quality in (0, 101, 9.5):
        with pytest.raises(OptionError, match="quality"):
            encode(picture, "jpeg", quality=quality)
    with pytest.raises(OptionError, match="docx"):
        output_format(picture, "docx")
    assert output_format(picture, ".jpg") == "JPEG"


def test_sides_beyond_the_format_are_an_output_error():
    wide = decode(np.zeros((1, 16384), np.uint8))
    with pytest.raises(OutputError, match="WEBP"):
        encode(wide, "webp")


def test_quality_changes_the_size():
    picture = decode(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for format in ("jpeg", "webp", "avif"):
        assert len(encode(picture, format, quality=30)) < len(encode(picture, format, quality=95))


@given(data=st.binary(max_size=200), start=st.sampled_from([0, 4, 12, 30]), at=st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_raise_image_errors_only(data, start, at):
    for whole in SAMPLES:
        damaged = whole[: start + at] + data + whole[start + at + len(data) // 2 :]
        with contextlib.suppress(ImageError):
            assert decode(damaged, Limits(max_pixels=1_000_000)).levels.size


def _samples():
    small = decode(RNG.integers(0, 256, (24, 17, 3), dtype=np.uint8))
    deep = decode(RNG.integers(0, 65536, (12, 9, 3)).astype(np.uint16))
    files = [encode(small, format) for format in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "PPM")]
    return [*files, encode(deep, "PNG"), encode(deep, "TIFF"), encode(deep, "PPM")]


SAMPLES = _samples()
