"""Around every request: its id, log line, metrics, security headers, and the last line of defence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import answer_to, respond
from serving.logs import begin_request
from serving.metrics import Metrics
from serving.turnstile import Turnstile
from serving.upload import ClientGone

logger = logging.getLogger("serving.requests")

#: The page loads its own script and style and shows pictures that it made; nothing else.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_ROUTES = frozenset({"/deblur", "/healthz", "/readyz", "/metrics", "/openapi.json", "/"})
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class Frame:
    """Plain ASGI, so that a disconnect of the client reaches the route unfiltered.

    Args:
        app: what is framed.
        metrics: where requests are counted.
        check: raises the Problem that a picture would be refused with right now. It is asked before the framework
            does anything: in a crowd the refusals are what the event loop is busy with.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, check: Callable[[], None]) -> None:
        self._app = app
        self._metrics = metrics
        self._check = check
        self._turnstile = Turnstile()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Frames HTTP; passes the rest on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] not in _QUIET:
            await self._turnstile.enter()
        await _Exchange(self._app, self._metrics, self._check, scope, send).run(receive)


class _Exchange:
    """One request and its response."""

    def __init__(self, app: ASGIApp, metrics: Metrics, check: Callable[[], None], scope: Scope, send: Send) -> None:
        self._app, self._metrics, self._check, self._scope, self._send = app, metrics, check, scope, send
        self._begun = time.monotonic()
        self._status = 0
        self._sent_bytes = 0
        self._request_id = begin_request(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})

    async def run(self, receive: Receive) -> None:
        """Passes the request on; whatever happens, there is an answer, a log line and a count."""
        try:
            if self._scope["path"] == "/deblur" and self._scope["method"] == "POST":
                self._check()
            await self._app(self._scope, receive, self._on_send)
        except ClientGone:
            pass  # nobody is there to be answered; logged and counted as 499
        except Exception as error:
            if self._status:
                raise  # too late for an answer: the server closes the connection
            problem = answer_to(error)
            self._scope["state"]["problem"] = problem.code
            await respond(problem)(self._scope, receive, self._on_send)
        finally:
            self._finish()

    async def _on_send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
        elif message["type"] == "http.response.body":
            self._sent_bytes += len(message.get("body", b""))
        await self._send(message)

    def _finish(self) -> None:
        seconds = time.monotonic() - self._begun
        path = self._scope["path"]
        route = path if path in _ROUTES else ("/web" if path.startswith("/web/") else "other")
        method = self._scope["method"] if self._scope["method"] in ("GET", "POST") else "other"
        code = self._status or 499  # 499: the client left before there was an answer
        self._metrics.requests.labels(route, method, str(code)).inc()
        self._metrics.duration.labels(route).observe(seconds)
        self._metrics.bytes_out.inc(self._sent_bytes)
        level = logging.DEBUG if path in _QUIET and code < 400 else logging.INFO
        facts = {
            "method": self._scope["method"],
            "path": path,
            "status": code,
            "ms": round(seconds * 1000, 1),
            "bytes_out": self._sent_bytes,
            **self._scope["state"].get("facts", {}),
        }
        if problem := self._scope["state"].get("problem"):
            facts["problem"] = problem
        logger.log(level, "request", extra=facts)
