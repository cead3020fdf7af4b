"""What a restoration gives back: the picture, its faces before and after, and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deblur.boxes import Face
from deblur.images import Picture


@dataclass(frozen=True, kw_only=True)
class FaceResult:
    """What became of one face.

    Attributes:
        before: the face in the picture given; None where it was found only after restoration.
        after: the face in the picture returned; None where the detector no longer finds it.
        kept_original: why the face was left as it was; None where it was restored.
        extent_px: estimated blur extent in px of the picture; None where it could not be told.
    """

    before: Face | None
    after: Face | None
    kept_original: str | None = None
    extent_px: float | None = None

    @property
    def restored(self) -> bool:
        """Whether the face was changed."""
        return self.kept_original is None


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """The result of restoring one picture.

    Attributes:
        image: the restored picture, of the kind that was given.
        picture: the same with all that was kept of the file.
        mode: what was done: `faces`, `whole`, or `none` where the picture was left as it was.
        faces: each face before and after.
        kept_original: why the whole picture was left as it was; None where something was restored.
        timings: seconds by step: `detect`, and `finish`, which holds the generator's time where its outputs are still
            being made then, as in `restore`.
        weights: name and sha256 of the weights.
    """

    image: Any
    picture: Picture
    mode: str
    faces: tuple[FaceResult, ...]
    kept_original: str | None
    timings: dict[str, float]
    weights: dict[str, str]

    @property
    def changed(self) -> bool:
        """Whether any pixel may differ from what was given."""
        return self.mode != "none"

    @property
    def faces_before(self) -> list[Face]:
        """Faces found in the picture given."""
        return [f.before for f in self.faces if f.before is not None]

    @property
    def faces_after(self) -> list[Face]:
        """Faces found in the picture returned."""
        return [f.after for f in self.faces if f.after is not None]

    @property
    def report(self) -> dict[str, Any]:
        """All but the pixels, as plain JSON values."""
        return {
            "mode": self.mode,
            "kept_original": self.kept_original,
            "size": [self.picture.width, self.picture.height],
            "faces_before": len(self.faces_before),
            "faces_after": len(self.faces_after),
            "faces": [
                {
                    "before": face_to_dict(f.before),
                    "after": face_to_dict(f.after),
                    "kept_original": f.kept_original,
                    "extent_px": None if f.extent_px is None else round(f.extent_px, 1),
                }
                for f in self.faces
            ],
            "timings": {k: round(v, 4) for k, v in self.timings.items()},
            "weights": self.weights,
            "warnings": list(self.picture.warnings),
        }


def face_to_dict(face: Face | None) -> dict[str, Any] | None:
    """A face as plain JSON values: `box`, `score`, `landmarks`."""
    if face is None:
        return None
    return {
        "box": [round(v, 2) for v in face.box],
        "score": round(face.score, 5),
        "landmarks": [[round(x, 2), round(y, 2)] for x, y in face.landmarks],
    }
