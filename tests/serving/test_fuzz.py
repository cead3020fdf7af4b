"""Malformed pictures and requests: never a 500, never a place that is not given back.

DEBLUR_FUZZ_EXAMPLES sets how many of each (60 by default); seeds of past failures stand in `@example` lines.
"""

import os
import socket

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.serving.support import encoded, noise, running

EXAMPLES = int(os.environ.get("DEBLUR_FUZZ_EXAMPLES", "60"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF", "GIF", "BMP", "PPM")
HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"II*\0", b"MM\0*", b"GIF89a", b"BM")
FORM = "multipart/form-data; boundary=x"
CHUNKED = b"POST /deblur HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: image/png\r\n\r\n"
FINE = {200, 400, 406, 408, 413, 415, 422, 503}

_seeds = {name: encoded(noise(33, 21), name) for name in FORMATS if name not in ("GIF",)}
_seeds["GIF"] = encoded(noise(33, 21).convert("P"), "GIF")


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


edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12)


@FUZZ
@given(name=st.sampled_from(FORMATS), edits=edits, cut=st.one_of(st.just(1.0), st.floats(0, 1)))
def test_damaged_pictures(target, name, edits, cut):
    content = mutated(_seeds[name], edits, cut)
    reply = target.post("/deblur?mode=whole", content=content, headers={"Content-Type": "image/*"})
    assert reply.status_code in FINE, (reply.text, content)


@FUZZ
@given(
    head=st.sampled_from(
        [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"II*\0", b"MM\0*", b"GIF89a", b"BM"]
    ),
    tail=st.binary(max_size=300),
)
def test_heads_of_pictures_and_then_anything(target, head, tail):
    reply = target.post("/deblur", content=head + tail, headers={"Content-Type": "image/*"})
    assert reply.status_code in FINE, reply.text


@FUZZ
@given(
    body=st.binary(max_size=500),
    content_type=st.sampled_from(
        [
            "image/png",
            "multipart/form-data; boundary=x",
            "multipart/form-data; boundary=",
            "text/plain",
            "image/",
            ";;",
            "",
        ]
    ),
    accept=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    query=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40),
)
def test_requests_of_any_kind(target, body, content_type, accept, query):
    headers = {"Content-Type": content_type, "Accept": accept.strip()}
    reply = target.post(f"/deblur?{query}", content=body, headers=headers)
    assert reply.status_code in FINE, reply.text
    if reply.status_code != 200:
        assert reply.headers["Content-Type"] == "application/problem+json"


@FUZZ
@given(st.binary(max_size=300), st.booleans())
@example(
    b"POST /deblur HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: image/png\r\n\r\nzz\r\n", True
)
@example(b"POST /deblur HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", True)
def test_bytes_on_the_wire(target, data, framed):
    if framed:
        data = b"POST /deblur HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n" + data + b"\r\n\r\n"
    with socket.create_connection((target.base_url.host, target.base_url.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 5") or answer.startswith(b"HTTP/1.1 503")
