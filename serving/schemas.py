"""What the service takes and gives, as OpenAPI tells it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["auto", "faces", "whole"]
Format = Literal["png", "jpeg", "webp", "tiff", "avif", "bmp", "ppm", "heif"]
Point = tuple[float, float]


class Strict(BaseModel):
    """A reply: its members and no others."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class FaceFound(Strict):
    """A face that the detector found."""

    box: tuple[float, float, float, float] = Field(description="x0, y0, x1, y1 in px of the upright picture.")
    score: float = Field(ge=0, le=1, description="Confidence of the detector.")
    landmarks: list[Point] = Field(description="Left eye, right eye, nose, left and right corner of the mouth, px.")


class FaceReport(Strict):
    """What became of one face."""

    before: FaceFound | None = Field(description="As found in the blurred picture.")
    after: FaceFound | None = Field(description="As found in the restored picture.")
    kept_original: str | None = Field(description="Why the face was left as it was; null when it was restored.")
    extent_px: float | None = Field(description="Estimated extent of the blur, px.")


class ModelReport(Strict):
    """The weights at work."""

    name: str
    version: str = Field(description="As in X-Model-Version.")
    sha256: str


class PictureReport(Strict):
    """The picture restored."""

    width: int = Field(ge=1, description="px, upright.")
    height: int = Field(ge=1, description="px, upright.")
    source_format: str = Field(description="Family of the input.")
    warnings: list[str] = Field(description="What the reader had to leave out, e.g. frames of an animation.")


class Report(Strict):
    """The reply to `Accept: application/json`."""

    request_id: str
    mode: Mode = Field(description="As asked for.")
    done: str = Field(description="What was restored.")
    kept_original: str | None = Field(description="Why the picture was left as it was; else null.")
    model: ModelReport
    picture: PictureReport
    faces_before: list[FaceFound]
    faces_after: list[FaceFound]
    confidence_before: float = Field(ge=0, le=1, description="Mean score; 0 with no face.")
    confidence_after: float = Field(ge=0, le=1, description="Mean score; 0 with no face.")
    faces: list[FaceReport]
    timings_ms: dict[str, float] = Field(description="By stage: read, decode, detect, wait, infer, finish, encode.")
    image: str | None = Field(description="The restored picture as a data URL, with `image=true`; else null.")


class FieldError(Strict):
    """One parameter that is not valid."""

    where: str
    message: str


class ProblemReport(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(description="URI of the kind of problem.")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What was expected, what came, what to do.")
    code: str = Field(description="The end of `type`; also the reason in the metrics.")
    request_id: str = Field(description="As in X-Request-ID and in the log.")
    retry_after_s: int | None = Field(default=None, ge=0, description="As in Retry-After.")
    max_bytes: int | None = Field(default=None, description="The limit that was passed.")
    errors: list[FieldError] | None = Field(default=None, description="Every parameter that is not valid.")


class Health(Strict):
    """The reply of the probes."""

    status: Literal["alive", "ready"]
