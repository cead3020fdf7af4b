import json

import pytest
from fastapi import FastAPI

from serving import telemetry


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_standard_variables_decide(monkeypatch, variables, wanted):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert telemetry.requested() == wanted
    if not wanted:
        assert telemetry.configure(FastAPI()) is False


def test_spans_do_nothing_without_a_provider():
    with telemetry.span("decode", pixels=4):
        assert telemetry.current_trace_id() == ""


def test_the_stages_of_a_request_are_spans_of_one_trace(serve):
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from tests.serving.support import encoded, noise
    from tests.serving.test_server import post

    server = serve(OTEL_TRACES_EXPORTER="console", OTEL_BSP_SCHEDULE_DELAY="100").wait_ready()
    post(server, encoded(noise(40, 30)), **{"X-Request-ID": "traced"})
    _, log = server.end()
    spans = [json.loads(part) for part in split_objects(server.printed())]
    stages = {
        s["name"]: s["context"]["trace_id"] for s in spans if s["name"] in ("decode", "detect", "generate", "encode")
    }
    assert set(stages) == {"decode", "detect", "generate", "encode"}
    assert len(set(stages.values())) == 1
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"time"')]
    assert any(line.get("request_id") == "traced" for line in lines)


def split_objects(text):
    """The JSON objects printed one after another."""
    decoder, place = json.JSONDecoder(), 0
    while (start := text.find("{", place)) >= 0:
        _, place = decoder.raw_decode(text, start)
        yield text[start:place]
