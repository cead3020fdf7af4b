"""Restores motion-blurred faces in photographs and shows, in numbers, that it did.

    import deblur

    restorer = deblur.load()                   # bundled weights, the best device at hand
    result = restorer.restore("party.jpg")     # path, bytes, PIL image or array in
    result.image                               # the same kind out
    result.faces                               # each face before and after

Importing this package is light: torch is imported with the first name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deblur.errors import DeblurError

if TYPE_CHECKING:
    from deblur.boxes import Face
    from deblur.images import Picture
    from deblur.restoration import Restorer, load
    from deblur.results import FaceResult, Restoration

__version__ = "0.1.0"

__all__ = ["DeblurError", "Face", "FaceResult", "Picture", "Restoration", "Restorer", "load"]

_HOMES = {
    "Face": "deblur.boxes",
    "FaceResult": "deblur.results",
    "Picture": "deblur.images",
    "Restoration": "deblur.results",
    "Restorer": "deblur.restoration",
    "load": "deblur.restoration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deblur' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
