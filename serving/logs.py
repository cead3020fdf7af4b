"""Structured logs: one JSON object a line, each with the id of the request that it belongs to."""

from __future__ import annotations

import contextvars
import json
import logging
import re
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

from serving.telemetry import current_trace_id

_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
_ACCEPTED_ID = re.compile(r"[A-Za-z0-9._\-]{1,64}\Z")
_ADDED = {"message", "asctime", "taskName", "color_message"}
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | _ADDED


def current_request_id() -> str:
    """The id of the request being handled, or an empty string."""
    return _request_id.get()


def begin_request(offered: str | None) -> str:
    """Takes the caller's request id when it is short and plain, else makes one, and remembers it."""
    request_id = offered if offered and _ACCEPTED_ID.match(offered) else uuid.uuid4().hex
    _request_id.set(request_id)
    return request_id


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request id, trace id and the record's extras."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats the record; line breaks inside values are escaped, so a line is always one record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in (("request_id", current_request_id()), ("trace_id", current_trace_id())):
            if value:
                line[key] = value
        line.update({k: v for k, v in record.__dict__.items() if k not in _STANDARD and k[0] != "_"})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str, style: str) -> None:
    """Sends the service's and the server's logs to standard error in the style chosen (`json` or `text`)."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("serving", "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name in ("serving", "uvicorn") else []
        logger.propagate = name not in ("serving", "uvicorn")
        logger.setLevel(level.upper())
    # The service writes its own line for each request, with the id; the server's would double it.
    logging.getLogger("uvicorn.access").disabled = True
