"""Every kind of picture is read right, or refused with a reason."""

import io
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms

from deblur.errors import CorruptImage, ImageError, ImageTooLarge, UnsupportedImage
from deblur.images import Limits, decode, encode, output_format, probe

RNG = np.random.default_rng(7)
RGB = RNG.integers(0, 256, (9, 14, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (9, 14), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (9, 14), dtype=np.uint8)


def saved(image, format="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, format=format, **options)
    return stream.getvalue()


def png16(channels):
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels.shape[2]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in channels)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", channels.shape[1], channels.shape[0], 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def exif_with_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "Maker"
    return exif


# What a camera would have stored so that the upright picture is `upright`.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}


class TestOrientation:
    @pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_all_eight_give_the_same_upright_pixels(self, orientation, format):
        stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](RGB)))
        options = {"lossless": True} if format == "WEBP" else {}
        picture = decode(saved(stored, format, exif=exif_with_orientation(orientation), **options))
        assert np.array_equal(picture.levels, RGB)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_agrees_with_pillow_on_jpeg(self, orientation):
        from PIL import ImageOps

        data = saved(Image.fromarray(RGB), "JPEG", exif=exif_with_orientation(orientation))
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert np.array_equal(decode(data).levels, expected)

    @pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP", "JPEG", "AVIF"])
    def test_second_pass_does_not_rotate_again_and_other_tags_stay(self, format):
        data = saved(Image.fromarray(RGB), "JPEG", exif=exif_with_orientation(6))
        once = decode(data)
        again = decode(encode(once, format))
        exif = Image.open(io.BytesIO(encode(once, format))).getexif()
        assert again.levels.shape == once.levels.shape == (14, 9, 3)
        assert exif.get(0x0112, 1) == 1
        assert exif[0x010F] == "Maker"

    def test_thumbnail_of_the_blurred_picture_is_unlinked(self):
        block = b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHIHH", 0x0112, 3, 1, 8, 0)
        block += struct.pack("<I", 26) + struct.pack("<H", 1) + struct.pack("<HHII", 0x0201, 4, 1, 99) + b"\0" * 4
        data = saved(Image.fromarray(RGB), "JPEG", exif=b"Exif\0\0" + block)
        cleaned = decode(data).exif
        assert len(cleaned) == len(block)
        assert struct.unpack_from("<I", cleaned, 22) == (0,)

    def test_xmp_orientation_is_set_to_one(self):
        packet = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6" dc:title="t"/>'
        picture = decode(saved(Image.fromarray(RGB), "JPEG", xmp=packet))
        assert b'tiff:Orientation="1"' in picture.xmp
        assert b'dc:title="t"' in picture.xmp

    @pytest.mark.filterwarnings("ignore:Corrupt EXIF")
    def test_damaged_exif_is_no_reason_to_fail(self):
        picture = decode(saved(Image.fromarray(RGB), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f"))
        assert picture.levels.shape == RGB.shape


class TestAlphaAndModes:
    @pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
    def test_rgba_alpha_comes_back_byte_equal(self, format):
        options = {"lossless": True, "exact": True} if format == "WEBP" else {}
        data = saved(Image.fromarray(np.dstack([RGB, ALPHA])), format, **options)
        picture = decode(encode(decode(data)))
        assert np.array_equal(picture.alpha, ALPHA)
        assert np.array_equal(picture.levels, RGB)

    @pytest.mark.parametrize("format", ["PNG", "TIFF"])
    def test_grey_with_alpha(self, format):
        data = saved(Image.fromarray(np.dstack([GREY, ALPHA])), format)
        picture = decode(encode(decode(data)))
        assert picture.grey
        assert np.array_equal(picture.alpha, ALPHA)
        assert np.array_equal(picture.levels[..., 2], GREY)

    def test_palette_with_transparency(self):
        image = Image.fromarray(RGB).quantize(16)
        image.info["transparency"] = 3
        expected = np.asarray(image.convert("RGBA"))
        picture = decode(saved(image, transparency=3))
        assert (expected[..., 3] == 0).any()
        assert np.array_equal(picture.alpha, expected[..., 3])
        assert np.array_equal(picture.levels, expected[..., :3])

    @pytest.mark.parametrize("mode", ["L", "1", "RGB"])
    def test_transparent_colour_key(self, mode):
        image = Image.fromarray(RGB).convert(mode)
        key = 0 if mode == "1" else image.getpixel((0, 0))
        picture = decode(saved(image, transparency=key))
        hidden = np.asarray(image.convert("RGB")) == np.asarray(image.convert("RGB"))[0, 0]
        expected = hidden.all(axis=2) if mode != "1" else np.asarray(image) == 0
        assert np.array_equal(picture.alpha == 0, expected)

    @pytest.mark.parametrize("mode", ["L", "1"])
    def test_grey_stays_grey_without_tint(self, mode):
        image = Image.fromarray(GREY).convert(mode)
        picture = decode(saved(image))
        tinted = picture.levels.copy()
        tinted[..., 0] //= 2
        written = Image.open(io.BytesIO(encode(picture.with_levels(tinted))))
        assert picture.grey
        assert np.array_equal(picture.levels[..., 0], np.asarray(image.convert("L")))
        assert written.mode == "L"

    def test_equal_channels_of_a_grey_picture_do_not_move(self):
        picture = decode(saved(Image.fromarray(GREY)))
        assert np.array_equal(picture.with_levels(picture.levels.copy()).levels, picture.levels)

    def test_palette_colours(self):
        image = Image.fromarray(RGB).quantize(32)
        assert np.array_equal(decode(saved(image)).levels, np.asarray(image.convert("RGB")))


class TestDepth:
    @pytest.mark.parametrize("channels", [1, 2, 3, 4])
    @pytest.mark.parametrize("format", ["PNG", "TIFF"])
    def test_16_bits_keep_their_levels(self, channels, format):
        pixels = RNG.integers(0, 65536, (9, 14, channels)).astype(np.uint16)
        first = decode(png16(pixels))
        assert first.levels.dtype == np.uint16
        assert first.grey == (channels < 3)
        assert np.array_equal(first.levels[..., 0], pixels[..., 0])
        if (channels, format) == (2, "TIFF"):
            pytest.skip("nothing here reads 16-bit grey TIFF with alpha")
        again = decode(encode(first, format))
        assert np.array_equal(again.levels, first.levels)
        assert again.grey == first.grey
        if channels % 2 == 0:
            assert np.array_equal(again.alpha, pixels[..., -1])

    @pytest.mark.parametrize("shape", [(9, 14), (9, 14, 3), (9, 14, 4)])
    @pytest.mark.parametrize("suffix", [".png", ".tiff"])
    def test_16_bit_files_of_another_writer(self, shape, suffix):
        pixels = RNG.integers(0, 65536, shape).astype(np.uint16)
        data = cv2.imencode(suffix, pixels)[1].tobytes()
        picture = decode(data)
        colours = pixels[..., 2::-1] if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
        assert np.array_equal(picture.levels, colours)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_what_is_written_with_16_bits_is_read_by_another_reader(self, channels):
        pixels = RNG.integers(0, 65536, (9, 14, channels)).astype(np.uint16)
        for format in ("PNG", "TIFF", "PPM"):
            data = np.frombuffer(encode(decode(pixels), format), np.uint8)
            read = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
            assert np.array_equal(read.reshape(9, 14, channels)[..., ::-1], pixels)

    def test_white_is_zero_is_turned_round(self):
        pixels = RNG.integers(0, 65536, (9, 14)).astype(np.uint16)
        data = bytearray(encode(decode(pixels), "TIFF"))
        start = struct.unpack_from("<I", data, 4)[0]
        for entry in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
            if struct.unpack_from("<H", data, entry)[0] == 262:
                struct.pack_into("<H", data, entry + 8, 0)
        assert np.array_equal(decode(bytes(data)).levels[..., 0], 65535 - pixels)

    def test_8_bit_formats_round(self):
        pixels = np.array([[[0, 128, 129], [65535, 65407, 32768]]], np.uint16)
        levels = decode(encode(decode(pixels), "BMP")).levels
        assert levels.tolist() == [[[0, 0, 1], [255, 255, 128]]]

    @pytest.mark.parametrize("peak", [1023, 65535])
    def test_portable_maps(self, peak):
        pixels = np.array([[[0, peak // 2, peak]]], ">u2")
        picture = decode(b"P6\n1 1\n%d\n" % peak + pixels.tobytes())
        assert picture.levels.tolist() == [[[0, round(peak // 2 * 65535 / peak), 65535]]]

    def test_float_tiff_is_refused_with_a_remedy(self):
        with pytest.raises(UnsupportedImage, match="32 bits"):
            decode(saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"))


class TestColour:
    def test_cmyk_jpeg(self):
        flat = Image.new("RGB", (16, 16), (200, 40, 90))
        picture = decode(saved(flat.convert("CMYK"), "JPEG", quality=100))
        assert np.abs(picture.levels.astype(int) - (200, 40, 90)).max() <= 3
        assert Image.open(io.BytesIO(encode(picture))).mode == "RGB"

    def test_rgb_profile_is_kept_and_levels_stay(self):
        profile = wide_profile()
        picture = decode(saved(Image.fromarray(RGB), icc_profile=profile))
        assert np.array_equal(picture.levels, RGB)
        for format in ("PNG", "JPEG", "WEBP", "TIFF", "AVIF"):
            assert decode(encode(picture, format)).icc == profile

    def test_rgb_profile_is_converted_where_the_format_has_no_place_for_it(self):
        profile = wide_profile()
        picture = decode(encode(decode(saved(Image.fromarray(RGB), icc_profile=profile)), "BMP"))
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        expected = ImageCms.profileToProfile(Image.fromarray(RGB), source, ImageCms.createProfile("sRGB"))
        assert picture.icc is None
        assert np.array_equal(picture.levels, np.asarray(expected))
        assert not np.array_equal(picture.levels, RGB)

    def test_damaged_profile_is_no_reason_to_fail(self):
        data = saved(Image.fromarray(RGB).convert("CMYK"), "JPEG", icc_profile=b"\0" * 200)
        picture = decode(data)
        assert "profile" in picture.warnings[0]

    def test_lab_is_converted(self):
        lab = Image.merge("LAB", [Image.new("L", (4, 4), 128)] * 3)
        levels = decode(saved(lab, "TIFF")).levels.astype(int)
        assert np.ptp(levels, axis=2).max() <= 2
        assert 100 < levels.mean() < 140


def wide_profile():
    """sRGB with its red and green colorants exchanged: valid, and unmistakably another space."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    places = {}
    for index in range(struct.unpack_from(">I", profile, 128)[0]):
        entry = 132 + 12 * index
        places[bytes(profile[entry : entry + 4])] = struct.unpack_from(">I", profile, entry + 4)[0]
    red, green = places[b"rXYZ"], places[b"gXYZ"]
    profile[red : red + 20], profile[green : green + 20] = (
        profile[green : green + 20],
        profile[red : red + 20],
    )
    return bytes(profile)


class TestFrames:
    @pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
    def test_first_frame_with_a_warning(self, format):
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
        picture = decode(saved(frames[0], format, save_all=True, append_images=frames[1:]))
        assert "first of 3" in picture.warnings[0]
        assert picture.levels[0, 0, 0] > 250
        assert picture.levels[0, 0, 1:].max() < 5

    def test_still_pictures_do_not_warn(self):
        for format in ("GIF", "PNG", "WEBP", "TIFF", "JPEG", "AVIF", "BMP", "PPM"):
            assert decode(saved(Image.fromarray(RGB), format)).warnings == ()

    def test_second_picture_inside_a_jpeg_is_mentioned(self):
        image = Image.fromarray(RGB)
        data = saved(image, "MPO", save_all=True, append_images=[image])
        picture = decode(data)
        assert picture.format == "JPEG"
        assert "second picture" in picture.warnings[0]

    def test_gif_is_written_as_png(self):
        assert output_format(decode(saved(Image.fromarray(RGB), "GIF"))) == "PNG"

    def test_frames_count_towards_the_pixel_limit(self):
        frames = [Image.new("L", (10, 10), level) for level in (0, 90, 180)]
        data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
        with pytest.raises(ImageTooLarge, match="3 frames"):
            decode(data, Limits(max_pixels=299))
        assert decode(data, Limits(max_pixels=300)).levels.shape == (10, 10, 3)


class TestRefusals:
    def test_heic_without_its_extra_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        with pytest.raises(UnsupportedImage, match=r"face-deblur\[heif\]"):
            decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 64)

    def test_heic_with_its_extra(self):
        library = pytest.importorskip("pillow_heif")
        stream = io.BytesIO()
        library.from_pillow(Image.fromarray(RGB).resize((64, 64))).save(stream, quality=90)
        picture = decode(stream.getvalue())
        assert picture.format == "HEIF"
        assert picture.levels.shape == (64, 64, 3)
        assert decode(encode(picture)).levels.shape == (64, 64, 3)

    def test_avif(self):
        picture = decode(saved(Image.new("RGB", (20, 10), (200, 100, 50)), "AVIF", quality=95))
        assert picture.format == "AVIF"
        assert np.abs(picture.levels.astype(int) - (200, 100, 50)).max() <= 4

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF", "PPM"])
    def test_truncated(self, format, tmp_path):
        big = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        data = saved(big, format)
        path = tmp_path / "cut.dat"
        path.write_bytes(data[: len(data) * 2 // 3])
        with pytest.raises(ImageError, match=r"cut\.dat"):
            decode(path)

    @pytest.mark.parametrize("suffix", [".png", ".tiff"])
    def test_truncated_16_bit(self, suffix):
        data = cv2.imencode(suffix, RNG.integers(0, 65536, (64, 64, 3)).astype(np.uint16))[1].tobytes()
        with pytest.raises(CorruptImage):
            decode(data[: len(data) * 2 // 3])

    def test_text_named_png_empty_file_folder_and_absent_file(self, tmp_path):
        (tmp_path / "text.png").write_text("no picture at all")
        (tmp_path / "empty.jpg").touch()
        (tmp_path / "folder.jpg").mkdir()
        for name, reason in (
            ("text.png", "no picture"),
            ("empty.jpg", "empty"),
            ("folder.jpg", "folder"),
            ("gone.jpg", "cannot be read"),
        ):
            with pytest.raises(ImageError, match=reason) as caught:
                decode(tmp_path / name)
            assert name in str(caught.value)

    def test_name_is_not_trusted(self, tmp_path):
        path = tmp_path / "photo.png"
        path.write_bytes(saved(Image.fromarray(RGB), "JPEG"))
        assert decode(path).format == "JPEG"

    def test_bomb_is_refused_from_its_header(self):
        data = saved(Image.new("1", (20000, 20000)))
        with pytest.raises(ImageTooLarge, match="20000 x 20000"):
            probe(data)
        with pytest.raises(ImageTooLarge, match="20000 x 20000"):
            decode(data)

    def test_frame_larger_than_its_animation(self):
        screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
        frame = b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\2\2\x4c\1\0"
        for read in (probe, decode):
            with pytest.raises(ImageTooLarge, match="frame"):
                read(screen + frame + b";")

    def test_large_picture_within_the_limit_does_not_warn(self):
        assert probe(saved(Image.new("1", (12000, 10000)))).width == 12000

    def test_postscript_is_not_run(self):
        with pytest.raises(UnsupportedImage):
            decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")

    def test_too_many_bytes(self, tmp_path):
        path = tmp_path / "a.bmp"
        path.write_bytes(saved(Image.fromarray(RGB), "BMP"))
        with pytest.raises(ImageTooLarge, match="bytes"):
            decode(path, Limits(max_bytes=100))
        with pytest.raises(ImageTooLarge, match="bytes"):
            decode(path.read_bytes(), Limits(max_bytes=100))

    def test_other_types(self):
        with pytest.raises(UnsupportedImage, match="int"):
            decode(3)


def test_import_is_light():
    code = "import sys, deblur.images; print('torch' in sys.modules, 'cv2' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
