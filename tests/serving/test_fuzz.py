"""Malformed pictures and requests: never a 500, never a place that is not given back.

FUZZ_EXAMPLES sets how many of each (25 by default); what has failed once stands in `@example` lines.
"""

import os
import socket
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.serving.support import encoded, noise, running

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"II*\0", b"MM\0*", b"GIF89a", b"BM", b"P6 9 9 ")
HEADS += (b"\0\0\0\x1cftypavif", b"\0\0\0\x1cftypheic")
FORM = "multipart/form-data; boundary=x"
TYPES = ("image/png", FORM, "multipart/form-data; boundary=", "text/plain", "image/", ";;", "")
CHUNKED = b"POST /deblur HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: image/png\r\n\r\n"
FRAMED = b"POST /deblur HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
FINE = {200, 400, 406, 408, 413, 415, 422, 503}
#: A frame of 65535 x 65535 in an animation of 1 x 1: once a 500.
GIANT_FRAME = b"\1\0\1\0\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\2\x4c\1\0;"

small = noise(33, 21)
exif = Image.Exif()
exif[0x0112], exif[0x010E] = 6, "a picture"
SEEDS = {
    "png": encoded(small, exif=exif),
    "palette png": encoded(small.convert("P"), transparency=3),
    "16-bit png": encoded(Image.fromarray(np.asarray(small.convert("L")).astype(np.uint16) * 257)),
    "animated png": encoded(small, save_all=True, append_images=[noise(33, 21, seed=1)]),
    "jpeg": encoded(small, "JPEG", exif=exif),
    "progressive cmyk jpeg": encoded(small.convert("CMYK"), "JPEG", progressive=True),
    "webp": encoded(small.convert("RGBA"), "WEBP", exif=exif),
    "lossless webp": encoded(small, "WEBP", lossless=True),
    "tiff": encoded(small, "TIFF", dpi=(300, 300)),
    "packed tiff of two pages": encoded(
        small, "TIFF", compression="tiff_lzw", save_all=True, append_images=[small.convert("L")]
    ),
    "avif": encoded(small, "AVIF"),
    "gif": encoded(small.convert("P"), "GIF", save_all=True, append_images=[noise(33, 21, seed=1).convert("P")]),
    "bmp": encoded(small, "BMP"),
    "ppm": encoded(small, "PPM"),
}


@pytest.fixture(scope="module")
def target(settings_for):
    with running(settings_for(max_pixels=100_000, max_body_bytes=200_000, upload_timeout_s=2)) as client:
        yield client
        admission = client.app.state.service.admission
        assert (admission.requests, admission.bytes, admission.pixels) == (0, 0, 0)
        assert client.get("/readyz").status_code == 200


def mutated(content, edits, cut):
    changed = bytearray(content)
    for place, value in edits:
        changed[int(place * (len(changed) - 1))] = value
    return bytes(changed[: max(1, int(cut * len(changed)))])


def with_right_checksums(png):
    """The same chunks, each with the checksum of what it holds now: else most edits end at the checksum."""
    fixed, at = bytearray(png), 8
    while at + 12 <= len(fixed):
        end = at + 8 + int.from_bytes(fixed[at : at + 4], "big")
        fixed[end : end + 4] = struct.pack(">I", zlib.crc32(fixed[at + 4 : end]))[: max(0, len(fixed) - end)]
        at = end + 4
    return bytes(fixed)


def check(reply, content):
    assert reply.status_code in FINE, (reply.text, content)
    if reply.status_code != 200:
        assert reply.headers["Content-Type"] == "application/problem+json"


edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12)
head_edits = st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 255)), max_size=6)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40)


@FUZZ
@given(
    name=st.sampled_from(sorted(SEEDS)),
    edits=st.one_of(edits, head_edits),
    cut=st.one_of(st.just(1.0), st.floats(0, 1)),
    checksums=st.booleans(),
    query=st.sampled_from(["", "&format=png", "&format=jpeg", "&format=tiff", "&format=avif", "&image=true"]),
)
def test_damaged_pictures(target, name, edits, cut, checksums, query):
    content = mutated(SEEDS[name], edits, cut)
    if checksums and name.endswith("png"):
        content = with_right_checksums(content)
    accept = "application/json" if "image" in query else "*/*"
    headers = {"Content-Type": "image/*", "Accept": accept}
    check(target.post(f"/deblur?mode=whole{query}", content=content, headers=headers), content)


@FUZZ
@given(head=st.sampled_from(HEADS), tail=st.binary(max_size=300))
@example(head=b"GIF89a", tail=GIANT_FRAME)
def test_heads_of_pictures_and_then_anything(target, head, tail):
    check(target.post("/deblur", content=head + tail, headers={"Content-Type": "image/*"}), head + tail)


@FUZZ
@given(
    names=st.lists(st.sampled_from(["file", "other", 'fi"le', ""]), max_size=4),
    headers=st.lists(st.tuples(printable, printable), max_size=3),
    content=st.one_of(st.binary(max_size=60), st.just(SEEDS["png"])),
    edits=edits,
    cut=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_damaged_forms(target, names, headers, content, edits, cut):
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n'.encode()
        + b"".join(f"{key}: {value}\r\n".encode() for key, value in headers)
        + b"\r\n"
        + content
        + b"\r\n"
        for name in names
    ]
    body = mutated(b"".join(parts) + b"--x--\r\n", edits, cut)
    check(target.post("/deblur", content=body, headers={"Content-Type": FORM}), body)


@FUZZ
@given(
    body=st.binary(max_size=500),
    content_type=st.sampled_from(TYPES),
    accept=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    query=printable,
)
def test_requests_of_any_kind(target, body, content_type, accept, query):
    headers = {"Content-Type": content_type, "Accept": accept.strip()}
    check(target.post(f"/deblur?{query}", content=body, headers=headers), body)


@FUZZ
@given(st.binary(max_size=300), st.booleans())
@example(CHUNKED + b"zz\r\n", False)
@example(b"POST /deblur HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", False)
def test_bytes_on_the_wire(target, data, framed):
    if framed:
        data = FRAMED + data + b"\r\n\r\n"
    with socket.create_connection((target.base_url.host, target.base_url.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 5") or answer.startswith(b"HTTP/1.1 503")
