"""Prometheus metrics, the quality metric among them: faces before and after, and the detector's confidence.

With `PROMETHEUS_MULTIPROC_DIR` set (several worker processes), /metrics adds up all workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONFIDENCE = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
STAGES = ("read", "decode", "detect", "wait", "infer", "finish", "encode")
#: Reasons that a face is left as it was are free text in the library; a label has to stay short.
_NOT_LABEL = re.compile(r"[^a-z]+")


class Metrics:
    """All metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._gauges: dict[str, Callable[[], float]] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"deblur_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"deblur_{name}", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"deblur_{name}", text, labels, registry=registry, multiprocess_mode="livesum")

        self.requests = counter("requests", "Requests by route, method and status code", "route", "method", "code")
        self.duration = histogram("request_seconds", "Time from headers to the last byte sent", _SECONDS, "route")
        self.rejected = counter("rejected", "Requests refused or dropped, by reason", "reason")
        self.stage = histogram("stage_seconds", "Time in each stage of a restoration", _SECONDS, "stage")
        self.batch_items = histogram("batch_items", "Faces or tiles in a generator batch", _BATCH)
        self.batch_requests = histogram("batch_requests", "Requests that share a generator batch", _BATCH)
        self.pixels = counter("pixels", "Pixels of the pictures restored")
        self.generator_pixels = counter("generator_pixels", "Pixels that went through the generator")
        self.bytes_in = counter("received_bytes", "Bytes of uploads")
        self.bytes_out = counter("sent_bytes", "Bytes of replies")
        self.faces = counter("faces", "Faces found, before and after restoration", "when")
        self.confidence = histogram(
            "detection_confidence",
            "Mean confidence of the faces of a picture, 0 with none, before and after restoration",
            _CONFIDENCE,
            "when",
        )
        self.kept_original = counter(
            "kept_original", "Faces and pictures left as they were, by reason", "what", "reason"
        )
        self.queue_requests = gauge("queue_requests", "Requests inside")
        self.queue_pixels = gauge("queue_pixels", "Pixels of the pictures inside")
        self.queue_bytes = gauge("queue_bytes", "Upload bytes held")
        self.queue_items = gauge("queue_items", "Faces or tiles that wait for a generator")
        self.ready = gauge("ready", "1 when /readyz says so")
        self.model = Gauge(
            "deblur_model",
            "The weights at work",
            ("name", "sha256", "version", "devices"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        for stage in STAGES:
            self.stage.labels(stage)
        for when in ("before", "after"):
            self.faces.labels(when)
            self.confidence.labels(when)

    def follow(self, gauges: dict[str, Callable[[], float]]) -> None:
        """Reads the named gauges from functions at the time of every scrape."""
        self._gauges = gauges

    def refresh(self) -> None:
        """Brings the gauges up to date."""
        for name, read in self._gauges.items():
            getattr(self, name).set(read())

    def count_restoration(self, restoration: Any, pixels: int) -> None:
        """Counts a `deblur.Restoration`: the quality metric."""
        self.pixels.inc(pixels)
        for when, faces in (("before", restoration.faces_before), ("after", restoration.faces_after)):
            self.faces.labels(when).inc(len(faces))
            self.confidence.labels(when).observe(mean_confidence(faces))
        for face in restoration.faces:
            if face.kept_original:
                self.kept_original.labels("face", reason_label(face.kept_original)).inc()
        if restoration.kept_original:
            self.kept_original.labels("picture", reason_label(restoration.kept_original)).inc()

    def render(self) -> bytes:
        """The exposition text."""
        self.refresh()
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        return generate_latest(self.registry)


def reason_label(reason: str) -> str:
    """A reason in words as a short label: its first four words, without numbers."""
    return "_".join(_NOT_LABEL.sub(" ", reason.lower()).split()[:4]) or "other"


def mean_confidence(faces: Any) -> float:
    """Mean detector score; 0 with no face, which is what a missed face counts as."""
    return float(sum(face.score for face in faces) / len(faces)) if faces else 0.0
