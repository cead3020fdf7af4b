"""The parts of the OpenAPI description that signatures cannot tell: bodies, codes, headers, examples."""

from __future__ import annotations

from typing import Any

from serving.errors import MEDIA_TYPE, PROBLEMS, TYPE_PREFIX
from serving.negotiation import IMAGE_TYPES, JSON

_BINARY = {"type": "string", "format": "binary", "minLength": 1}

REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "description": "One picture: a form with the part `file`, or the bare file. Its bytes tell its kind.",
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {**_BINARY, "description": "The picture file."}},
            },
            "encoding": {"file": {"contentType": "image/png, image/jpeg, image/webp, image/*"}},
        },
        **{media: {"schema": _BINARY} for media in ("image/png", "image/jpeg", "image/webp", "image/*")},
    },
}

_HEADERS: dict[str, tuple[str, str]] = {
    "X-Request-ID": ("string", "The caller's id if it sent one, else a new one; also in the log."),
    "X-Model-Version": ("string", "Name and hash of the weights at work."),
    "X-Faces-Before": ("integer", "Faces found in the blurred picture."),
    "X-Faces-After": ("integer", "Faces found in the restored picture."),
    "X-Detection-Confidence-Before": ("number", "Mean confidence of those faces; 0 with none."),
    "X-Detection-Confidence-After": ("number", "Mean confidence of those faces; 0 with none."),
    "Server-Timing": ("string", "Milliseconds by stage."),
    "Cache-Control": ("string", "no-store"),
    "Vary": ("string", "Accept"),
}


def _header(kind: str, text: str) -> dict[str, Any]:
    return {"schema": {"type": kind}, "description": text, "required": True}


def _problem(status: int) -> dict[str, Any]:
    codes = {code: title for code, (its, title) in PROBLEMS.items() if its == status}
    headers = {"X-Request-ID": _header(*_HEADERS["X-Request-ID"])}
    if status == 503:
        headers["Retry-After"] = {
            "schema": {"type": "integer", "minimum": 0},
            "description": "Seconds after which to try again.",
        }
    if status == 401:
        headers["WWW-Authenticate"] = _header("string", "Bearer")
    examples = {
        code: {
            "value": {
                "type": TYPE_PREFIX + code,
                "title": title,
                "status": status,
                "detail": f"{title}.",
                "code": code,
                "request_id": "4f0c2a9d6b6f4c0e8f5f0f6f7d0f9a11",
            }
        }
        for code, title in codes.items()
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemReport"}, "examples": examples}}
    return {"description": "; ".join(codes.values()), "headers": headers, "content": content}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` entries of these error codes."""
    return {status: _problem(status) for status in statuses}


def picture_response() -> dict[str, Any]:
    """The `responses` entry of a restored picture, or of the report."""
    content: dict[str, Any] = {media: {"schema": _BINARY} for media in IMAGE_TYPES.values()}
    content[JSON] = {"schema": {"$ref": "#/components/schemas/Report"}}
    return {
        "description": "The restored picture, or the report on it.",
        "headers": {name: _header(*value) for name, value in _HEADERS.items()},
        "content": content,
    }
