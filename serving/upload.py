"""Reads the picture out of a request's body, bounded in bytes and time while it streams in.

Nothing is trusted but the bytes: names and declared types of parts are not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from serving.errors import Problem

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

#: Bytes that part headers and other fields may take beside the picture.
_OVERHEAD_BYTES = 64 * 1024
_MAX_PARTS = 32


class ClientGone(Exception):
    """The client closed the connection before the answer."""


async def read_picture(
    request: Request, *, max_bytes: int, timeout_s: float, count: Callable[[int], None]
) -> bytearray:
    """The picture's bytes, from a multipart part named `file` or from a raw `image/*` body.

    Args:
        request: the request, its body not yet read.
        max_bytes: largest picture.
        timeout_s: longest time until the last byte.
        count: called with the size of every chunk that is kept; may raise to refuse.

    Raises:
        Problem: 400, 408, 413 or 415.
        ClientGone: the client closed the connection.
    """
    multipart = _is_multipart(request)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes + (_OVERHEAD_BYTES if multipart else 0):
        raise _too_large(max_bytes, f"Content-Length: {declared}")
    try:
        async with asyncio.timeout(timeout_s):
            if multipart:
                picture = await _read_multipart(request, max_bytes, count)
            else:
                picture = await _read_raw(request, max_bytes, count)
    except TimeoutError:
        detail = f"The body was not complete after {timeout_s:g} s; send it faster, or a smaller picture."
        raise Problem("upload-too-slow", detail, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGone from None
    if not picture:
        raise Problem("empty-body", "Expected a picture, got no bytes.")
    return picture


def _too_large(max_bytes: int, got: str) -> Problem:
    detail = f"Expected at most {max_bytes} bytes, got {got}."
    return Problem("body-too-large", detail, fields={"max_bytes": max_bytes})


def _is_multipart(request: Request) -> bool:
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media == "multipart/form-data":
        return True
    if media.startswith("image/") and len(media) > len("image/"):
        return False
    got = f"got {media!r}" if media else "got none"
    detail = f"Content-Type: expected multipart/form-data with a part named 'file', or image/*, {got}."
    headers = {"Accept-Post": "multipart/form-data, image/*"}
    raise Problem("unsupported-media-type", detail, headers=headers)


async def _read_raw(request: Request, max_bytes: int, count: Callable[[int], None]) -> bytearray:
    picture = bytearray()
    async for chunk in request.stream():
        if len(picture) + len(chunk) > max_bytes:
            raise _too_large(max_bytes, "more")
        count(len(chunk))
        picture += chunk
    return picture


async def _read_multipart(request: Request, max_bytes: int, count: Callable[[int], None]) -> bytearray:
    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get(b"boundary")
    if not boundary:
        raise Problem("bad-multipart", "Content-Type: expected a boundary after multipart/form-data, got none.")
    parts = _Parts(max_bytes)
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        total = 0
        async for chunk in request.stream():
            total += len(chunk)
            if total > max_bytes + _OVERHEAD_BYTES:
                raise _too_large(max_bytes, "more")
            count(len(chunk))
            parser.write(chunk)
        parser.finalize()
    except (FormParserError, UnicodeDecodeError) as error:
        raise Problem("bad-multipart", f"The multipart body is malformed: {error}") from error
    if total == 0:
        raise Problem("empty-body", "Expected a multipart body with a part named 'file', got no bytes.")
    return parts.result()


class _Parts:
    """Collects the part named `file` as the parser meets it, and the names of the others."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._picture = bytearray()
        self._found = 0
        self._ended = False
        self._names: list[str] = []
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._wanted = False

    def callbacks(self) -> MultipartCallbacks:
        """The functions that the parser calls."""
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._wanted = False
        if len(self._names) >= _MAX_PARTS:
            raise Problem("bad-multipart", f"Expected at most {_MAX_PARTS} parts, got more.")

    def _on_header_end(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._names.append(name)
        self._wanted = name == "file"
        self._found += self._wanted
        if self._found > 1:
            raise Problem("bad-multipart", "Expected one part named 'file', got several; send one picture at a time.")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._wanted:
            return
        if len(self._picture) + end - start > self._max_bytes:
            raise _too_large(self._max_bytes, "more")
        self._picture += data[start:end]

    def _on_end(self) -> None:
        self._ended = True

    def result(self) -> bytearray:
        """The picture, once the body is complete."""
        if not self._ended:
            raise Problem("bad-multipart", "The multipart body ends before its closing boundary.")
        if not self._found:
            got = ", ".join(repr(name) for name in self._names) or "no part"
            raise Problem("bad-multipart", f"Expected a part named 'file', got {got}.")
        return self._picture
