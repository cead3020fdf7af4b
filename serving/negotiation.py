"""Which media type to answer with: `format=` if given, else `Accept` with its q-values (RFC 9110, 12.5.1)."""

from __future__ import annotations

from dataclasses import dataclass

from serving.errors import Problem

JSON = "application/json"
#: format name -> media type, in the order preferred among equals.
IMAGE_TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "tiff": "image/tiff",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "ppm": "image/x-portable-pixmap",
    "heif": "image/heif",
}
#: Written only for an input of the same family, or when asked for by name: it needs an optional package.
_BY_NAME_ONLY = "heif"


@dataclass(frozen=True, kw_only=True)
class Range:
    """One member of an `Accept` header."""

    kind: str
    subtype: str
    quality: float

    def specificity(self, media: str) -> int:
        """0 for no match, 1 for `*/*`, 2 for `image/*`, 3 for the very type."""
        kind, subtype = media.split("/")
        if self.kind == "*":
            return 1 if self.subtype == "*" else 0
        if self.kind != kind:
            return 0
        return 2 if self.subtype == "*" else 3 * (self.subtype == subtype)


def parse_accept(header: str | None) -> list[Range]:
    """The ranges of an `Accept` header; malformed members are skipped, and no header means anything goes."""
    if header is None or not header.strip():
        return [Range(kind="*", subtype="*", quality=1.0)]
    ranges = []
    for member in header.split(","):
        media, *parameters = (part.strip().lower() for part in member.split(";"))
        kind, slash, subtype = media.partition("/")
        if not (kind and slash and subtype):
            continue
        if subtype == "jpg":
            subtype = "jpeg"
        ranges.append(Range(kind=kind, subtype=subtype, quality=_quality(parameters)))
    return ranges


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def _quality_of(media: str, ranges: list[Range]) -> float:
    matching = [(r.specificity(media), r.quality) for r in ranges if r.specificity(media)]
    return max(matching)[1] if matching else 0.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to answer with.

    Attributes:
        json: the report rather than the picture.
        format: name of the picture's format, or None for the input's own family.
    """

    json: bool
    format: str | None

    def format_for(self, own: str, accept: str | None) -> str:
        """The picture's format, once the one that it would keep (`png`, `jpeg`...) is known."""
        if self.format is not None:
            return self.format
        ranges = parse_accept(None if self.json else accept)
        offered = [own, *(name for name in IMAGE_TYPES if name not in (own, _BY_NAME_ONLY))]
        return max(offered, key=lambda name: _quality_of(IMAGE_TYPES[name], ranges))


def negotiate(accept: str | None, wanted: str | None) -> Answer:
    """Chooses between the picture and the report, and the picture's format where the caller named one.

    Among types of equal quality a picture goes before the report, and the input's own family before others.

    Args:
        accept: the `Accept` header, or None.
        wanted: the `format` parameter, or None.

    Raises:
        Problem: 406, when nothing that is accepted can be produced.
    """
    ranges = parse_accept(accept)
    json_quality = _quality_of(JSON, ranges)
    best = max(_quality_of(media, ranges) for name, media in IMAGE_TYPES.items() if name != _BY_NAME_ONLY)
    if wanted is not None:  # `format` decides the format; `Accept` only between picture and report
        return Answer(json=json_quality > best or (json_quality > 0 and best == 0), format=wanted)
    if max(json_quality, best) <= 0:
        produced = ", ".join([*IMAGE_TYPES.values(), JSON])
        raise Problem("not-acceptable", f"Accept: expected one of {produced}, got {accept!r}.")
    return Answer(json=json_quality > best, format=None)
