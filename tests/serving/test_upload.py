import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from serving.errors import Problem
from serving.upload import ClientGone, read_picture

LIMIT = 1000


def read(chunks, content_type="image/png", headers=(), limit=LIMIT, timeout_s=5.0, pause_s=0.0, end=True):
    """What `read_picture` makes of a body that arrives in these chunks, and the bytes that it counted."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False} if end else {"type": "http.disconnect"})
    counted = []

    async def receive():
        await asyncio.sleep(pause_s)
        return messages.pop(0)

    raw = [(b"content-type", content_type.encode())] if content_type is not None else []
    raw += [(name.encode(), value.encode()) for name, value in headers]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, receive)
    picture = asyncio.run(read_picture(request, max_bytes=limit, timeout_s=timeout_s, count=counted.append))
    return bytes(picture), sum(counted)


def form(parts, boundary="xyz", end=True):
    body = b""
    for name, content in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="../../etc/passwd"\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + (f"--{boundary}--\r\n".encode() if end else b"")


FORM = "multipart/form-data; boundary=xyz"


def refusal(*args, **kwargs):
    with pytest.raises(Problem) as caught:
        read(*args, **kwargs)
    return caught.value.status, caught.value.code


@given(content=st.binary(min_size=1, max_size=LIMIT), cuts=st.lists(st.integers(0, 1200), max_size=8))
def test_the_part_named_file_comes_out_whole_however_it_is_cut(content, cuts):
    body = form([("note", b"hello"), ("file", content), ("more", b"")])
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    chunks = [body[a:b] for a, b in pairwise(edges)]
    if b"\r\n--xyz" not in content:
        assert read(chunks, FORM)[0] == content
    assert read([content], "image/x-anything")[0] == content


def test_bytes_are_counted_as_they_come():
    assert read([b"abc", b"de"]) == (b"abcde", 5)


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/json", "image/", "multipart/mixed"])
def test_another_content_type_is_415(content_type):
    assert refusal([b"abc"], content_type) == (415, "unsupported-media-type")


def test_nothing_is_400():
    assert refusal([]) == (400, "empty-body")
    assert refusal([], FORM) == (400, "empty-body")
    assert refusal([form([("file", b"")])], FORM) == (400, "empty-body")


@pytest.mark.parametrize(
    "body",
    [
        form([("picture", b"abc")]),
        form([]),
        form([("file", b"abc"), ("file", b"def")]),
        form([("file", b"abc")], end=False),
        b"abc",
        form([("file", b"abc")], boundary="other"),
        form([(f"f{i}", b"") for i in range(100)] + [("file", b"abc")]),
        b"--xyz\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--xyz--\r\n",
    ],
)
def test_a_malformed_form_is_400(body):
    assert refusal([body], FORM, limit=100_000) == (400, "bad-multipart")


def test_a_form_without_boundary_is_400():
    assert refusal([b"abc"], "multipart/form-data") == (400, "bad-multipart")


def test_too_many_bytes_are_413_from_the_header_and_while_streaming():
    too_long = [("content-length", "1001")]
    assert refusal([b"a" * 10], headers=too_long) == (413, "body-too-large")
    assert refusal([b"a" * 600, b"a" * 600]) == (413, "body-too-large")
    assert refusal([form([("file", b"a" * 1001)])], FORM) == (413, "body-too-large")
    assert refusal([form([("note", b"a" * 70_000), ("file", b"a")])], FORM) == (413, "body-too-large")
    assert read([b"a" * 1000]) == (b"a" * 1000, 1000)


def test_a_lying_content_length_is_not_trusted():
    assert refusal([b"a" * 2000], headers=[("content-length", "5")]) == (413, "body-too-large")
    assert read([b"abc"], headers=[("content-length", "nonsense")])[0] == b"abc"


def test_a_slow_upload_is_408():
    assert refusal([b"a"] * 50, timeout_s=0.05, pause_s=0.01) == (408, "upload-too-slow")


def test_a_client_that_leaves_in_the_middle_is_noticed():
    with pytest.raises(ClientGone):
        read([b"abc"], end=False)
    with pytest.raises(ClientGone):
        read([form([("file", b"abc")], end=False)], FORM, end=False)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_picture_or_a_4xx(body):
    status = 200
    try:
        read([b"--xyz\r\n" + body], FORM)
    except Problem as problem:
        status = problem.status
    assert status in (200, 400, 413)
