"""Every error as RFC 9457 `application/problem+json`, the framework's own 404, 405 and 422 included."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from deblur import errors as library
from serving.logs import current_request_id

logger = logging.getLogger("serving.errors")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:face-deblur:problem:"

#: code -> (status, title). The code ends the `type` URI, and is the reason in the metrics.
PROBLEMS: dict[str, tuple[int, str]] = {
    "empty-body": (400, "The body is empty"),
    "bad-multipart": (400, "The multipart body cannot be read"),
    "bad-request": (400, "The request cannot be understood"),
    "unauthorized": (401, "An API key is required"),
    "not-found": (404, "There is nothing here"),
    "method-not-allowed": (405, "This method is not supported here"),
    "not-acceptable": (406, "None of the accepted media types can be produced"),
    "upload-too-slow": (408, "The body took too long to arrive"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body is not a picture of a kind that is read here"),
    "invalid-parameter": (422, "A parameter has a value that is not allowed"),
    "corrupt-picture": (422, "The picture cannot be decoded"),
    "too-many-pixels": (422, "The picture has too many pixels"),
    "internal": (500, "Something went wrong here"),
    "queue-full": (503, "The service is busy"),
    "not-ready": (503, "The service is not ready"),
    "draining": (503, "The service is shutting down"),
    "out-of-memory": (503, "The device ran out of memory"),
    "deadline": (504, "The deadline passed"),
}

_BY_STATUS = {404: "not-found", 405: "method-not-allowed", 400: "bad-request", 413: "body-too-large"}


class Problem(Exception):
    """An answer that is an error.

    Args:
        code: a key of `PROBLEMS`.
        detail: what was expected, what came and what to do, for the caller to read.
        headers: further response headers.
        retry_after_s: seconds after which to try again; becomes `Retry-After`.
        fields: further members of the problem object.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status, self.title = PROBLEMS[code]
        self.detail = detail
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)
            self.fields["retry_after_s"] = retry_after_s


def problem_from(error: BaseException) -> Problem:
    """What a failure in the library means to the caller; anything unexpected is hidden behind `internal`."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, library.ImageTooLarge):
        return Problem("too-many-pixels", str(error))
    if isinstance(error, library.CorruptImage):
        return Problem("corrupt-picture", str(error))
    if isinstance(error, library.UnsupportedImage):
        return Problem("unsupported-media-type", str(error))
    if isinstance(error, library.OutOfMemory | MemoryError):
        detail = "There was not enough memory even for a smaller batch; try later or send a smaller picture."
        return Problem("out-of-memory", detail, retry_after_s=5)
    if isinstance(error, library.OutputError):
        return Problem("not-acceptable", str(error))
    if isinstance(error, library.OptionError):
        return Problem("invalid-parameter", str(error))
    return Problem("internal", "The failure is in the log under this request's id.")


def answer_to(error: BaseException) -> Problem:
    """Like `problem_from`; the unexpected goes to the log with its traceback."""
    problem = problem_from(error)
    if problem.code == "internal":
        logger.error("unexpected failure", exc_info=error)
    return problem


def respond(problem: Problem) -> Response:
    """The problem as a response."""
    body = {
        "type": TYPE_PREFIX + problem.code,
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "request_id": current_request_id(),
        **problem.fields,
    }
    headers = {"Cache-Control": "no-store", **problem.headers}
    return Response(json.dumps(body), problem.status, headers=headers, media_type=MEDIA_TYPE)


def _from_http(error: HTTPException) -> Problem:
    code = _BY_STATUS.get(error.status_code, "bad-request" if error.status_code < 500 else "internal")
    problem = Problem(code, str(error.detail), headers=error.headers)
    if problem.status != error.status_code:  # one of the framework's that has no code of its own here
        problem.status, problem.title = error.status_code, HTTPStatus(error.status_code).phrase
    return problem


def _from_validation(error: RequestValidationError) -> Problem:
    found = [{"where": ".".join(str(part) for part in e["loc"]), "message": e["msg"]} for e in error.errors()]
    detail = "; ".join(f"{e['where']}: {e['message']}" for e in found) or "The request is not valid."
    return Problem("invalid-parameter", detail, fields={"errors": found})


def install(app: FastAPI) -> None:
    """Makes every error of the application a problem object."""

    async def on_problem(request: Request, error: Exception) -> Response:
        problem = answer_to(error)
        request.state.problem = problem.code
        return respond(problem)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = _from_http(error)
        request.state.problem = problem.code
        return respond(problem)

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        request.state.problem = "invalid-parameter"
        return respond(_from_validation(error))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(library.DeblurError, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)
