"""The endpoints."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, Response
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Receive, Scope, Send

from serving.admission import Ticket
from serving.errors import Problem, problem_from
from serving.metrics import CONTENT_TYPE, mean_confidence
from serving.middleware import PAGE_POLICY
from serving.negotiation import IMAGE_TYPES, JSON, Answer, negotiate
from serving.openapi import REQUEST_BODY, picture_response, problems
from serving.pipeline import Outcome
from serving.reports import report_on
from serving.schemas import Format, Health, Mode
from serving.service import Service
from serving.upload import ClientGone, read_picture

T = TypeVar("T")

WEB = Path(__file__).parent / "web"
_CHUNK = 64 * 1024
_HEADER = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="ApiKey")
_BEARER = HTTPBearer(auto_error=False, scheme_name="Bearer")


class Sent(Response):
    """A response that goes out in pieces, so that a slow reader holds back the sender, and not for ever.

    Args:
        content: the body.
        headers: of the response.
        media_type: of the response.
        timeout_s: longest time to take it.
        on_end: called when it is sent or has failed.
    """

    def __init__(
        self,
        content: bytes,
        *,
        headers: dict[str, str],
        media_type: str,
        timeout_s: float,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._timeout_s = timeout_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the pieces."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                view = memoryview(self.body)
                for start in range(0, len(view), _CHUNK):
                    body = bytes(view[start : start + _CHUNK])
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_end()


def build_router(service: Service) -> APIRouter:
    """All endpoints of a service."""
    router = APIRouter()
    _add_deblur(router, service)
    _add_probes(router, service)
    if service.settings.web:
        _add_page(router)
    return router


def _add_deblur(router: APIRouter, service: Service) -> None:
    keys = [key.get_secret_value() for key in service.settings.api_keys]

    @router.post(
        "/deblur",
        summary="Restore a blurred picture",
        response_class=Response,
        responses={200: picture_response(), **problems(*_error_codes(bool(keys)))},
        openapi_extra={"requestBody": REQUEST_BODY},
        dependencies=[Depends(_key_check(keys))] if keys else [],
    )
    async def deblur(
        request: Request,
        mode: Annotated[
            Mode, Query(description="`auto`: the faces if there are any, else the whole picture.")
        ] = "auto",
        format: Annotated[
            Format | None,
            Query(description="Format of the restored picture; by default `Accept`, then its own."),
        ] = None,
        image: Annotated[bool, Query(description="Put the picture into the JSON report, as a data URL.")] = False,
    ) -> Response:
        """Takes one picture and gives it back with its faces restored.

        With `Accept: application/json` the reply is a report on the faces instead.
        """
        answer = negotiate(request.headers.get("accept"), format)
        if not service.fleet.ready:
            raise service.fleet.not_ready()
        ticket = service.admission.enter()
        try:
            return await _handle(request, service, ticket, mode, answer, image)
        except BaseException as error:
            ticket.release_when_idle()
            _count_failure(request, service, error)
            raise


def _error_codes(keys: bool) -> list[int]:
    return [400, *([401] if keys else []), 406, 408, 413, 415, 422, 500, 503, 504]


def _count_failure(request: Request, service: Service, error: BaseException) -> None:
    if isinstance(error, Problem) and error.code in ("queue-full", "draining"):
        return  # counted under its own reason
    if isinstance(error, ClientGone):
        reason = "client-gone"
    elif isinstance(error, asyncio.CancelledError):
        reason = "cancelled"
    elif isinstance(error, Exception):
        reason = problem_from(error).code
    else:
        return
    service.metrics.rejected.labels(reason).inc()


async def _handle(
    request: Request, service: Service, ticket: Ticket, mode: Mode, answer: Answer, image: bool
) -> Response:
    settings, accept, begun = service.settings, request.headers.get("accept"), time.monotonic()
    try:
        body = await read_picture(
            request,
            max_bytes=settings.max_body_bytes,
            timeout_s=settings.upload_timeout_s,
            count=ticket.add_bytes,
        )
    finally:
        service.metrics.bytes_in.inc(ticket.bytes)
    read_s = time.monotonic() - begun
    service.metrics.stage.labels("read").observe(read_s)

    async def work() -> tuple[Outcome, bytes, str]:
        outcome = await service.pipeline.run(
            body,
            mode=mode,
            choose_format=lambda own: answer.format_for(own, accept),
            encode=image or not answer.json,
            ticket=ticket,
        )
        outcome.timings_s["read"] = read_s
        # Not here on the event loop: a picture as text takes long enough for a probe to notice.
        content, media_type = await service.pipeline.last(ticket, lambda: _content(outcome, answer, mode))
        return outcome, content, media_type

    outcome, content, media_type = await _until(request, asyncio.create_task(work()), settings.request_timeout_s)
    request.state.facts = _facts(ticket, outcome)
    return Sent(
        content,
        headers=_headers(outcome, time.monotonic() - begun),
        media_type=media_type,
        timeout_s=settings.download_timeout_s,
        on_end=lambda: ticket.release(completed=True),
    )


async def _until(request: Request, work: asyncio.Task[T], timeout_s: float) -> T:
    """The work's result; drops the work when the deadline passes or the client leaves first."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise ClientGone
        detail = f"The picture was not restored within {timeout_s:g} s; try later or send a smaller one."
        raise Problem("deadline", detail)
    finally:
        for task in (work, gone):
            task.cancel()
        with contextlib.suppress(BaseException):
            await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _content(outcome: Outcome, answer: Answer, mode: Mode) -> tuple[bytes, str]:
    media_type = IMAGE_TYPES[outcome.format]
    if not answer.json:
        assert outcome.payload is not None
        return outcome.payload, media_type
    url = None
    if outcome.payload is not None:
        url = f"data:{media_type};base64,{base64.b64encode(outcome.payload).decode('ascii')}"
    return report_on(outcome, mode, url).model_dump_json().encode(), JSON


def _headers(outcome: Outcome, total_s: float) -> dict[str, str]:
    before, after = outcome.restoration.faces_before, outcome.restoration.faces_after
    stages = {**outcome.timings_s, "total": total_s}
    return {
        "X-Model-Version": outcome.model.version,
        "X-Faces-Before": str(len(before)),
        "X-Faces-After": str(len(after)),
        "X-Detection-Confidence-Before": f"{mean_confidence(before):.4f}",
        "X-Detection-Confidence-After": f"{mean_confidence(after):.4f}",
        "Server-Timing": ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in stages.items()),
        "Vary": "Accept",
        "Cache-Control": "no-store",
    }


def _facts(ticket: Ticket, outcome: Outcome) -> dict[str, Any]:
    """What the log line of a restoration tells: numbers, never the picture or its name."""
    return {
        "bytes_in": ticket.bytes,
        "pixels": ticket.pixels,
        "faces_before": len(outcome.restoration.faces_before),
        "faces_after": len(outcome.restoration.faces_after),
        "stages_ms": {name: round(s * 1000, 1) for name, s in outcome.timings_s.items()},
    }


def _key_check(keys: Sequence[str]) -> Callable[..., None]:
    """A dependency that asks for one of the keys; the time it takes does not depend on them."""
    known = [hashlib.sha256(key.encode()).digest() for key in keys]

    def check(
        plain: Annotated[str | None, Depends(_HEADER)],
        token: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> None:
        offered = plain or (token.credentials if token else "")
        digest = hashlib.sha256(offered.encode()).digest()
        matches = [hmac.compare_digest(digest, one) for one in known]  # all are compared, always
        if not any(matches):
            detail = "Expected an API key in X-API-Key or as a bearer token, got none or a wrong one."
            raise Problem("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})

    return check


def _add_probes(router: APIRouter, service: Service) -> None:
    @router.get("/healthz", summary="Is the process alive?", response_model=Health)
    async def healthz() -> Response:
        """Answers as long as the process does; never waits on the model."""
        return Response(b'{"status":"alive"}', media_type=JSON, headers={"Cache-Control": "no-store"})

    @router.get("/readyz", summary="Would a picture be taken?", response_model=Health, responses=problems(503))
    async def readyz() -> Response:
        """503 while the model is loaded and warmed up, with the queue full, and while draining."""
        if not service.fleet.ready:
            raise service.fleet.not_ready()
        if service.admission.draining:
            raise Problem("draining", "The service is shutting down.", retry_after_s=1)
        if service.admission.full:
            detail = "The queue is full."
            raise Problem("queue-full", detail, retry_after_s=service.admission.retry_after_s())
        return Response(b'{"status":"ready"}', media_type=JSON, headers={"Cache-Control": "no-store"})

    for path, probe in (("/healthz", healthz), ("/readyz", readyz)):
        router.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)  # some balancers ask like this

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Traffic, queue, batches, stages, refusals, and the quality metric."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)


def _add_page(router: APIRouter) -> None:
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}

    def serve(path: str, name: str, media_type: str) -> None:
        @router.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
        async def file() -> FileResponse:
            return FileResponse(WEB / name, media_type=media_type, headers=headers)

    serve("/", "index.html", "text/html; charset=utf-8")
    serve("/web/app.js", "app.js", "text/javascript; charset=utf-8")
    serve("/web/style.css", "style.css", "text/css; charset=utf-8")
    serve("/web/icon.svg", "icon.svg", "image/svg+xml")
