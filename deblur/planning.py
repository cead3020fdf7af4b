"""What is to be done to a picture, and what the generator gets for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from deblur.boxes import Face
from deblur.images import Picture
from deblur.regions import Region, region_input

KEPT_PX = 1 << 22  # of inputs that are kept until they are laid back: 48 MiB


@dataclass(kw_only=True)
class Plan:
    """What is to be done to one picture.

    Attributes:
        picture: the picture given.
        mode: `faces`, `whole` or `none`.
        strict: whether a whole picture stays restored even where no face is found in it afterwards.
        faces: faces found.
        extents_px: estimated blur extent of each face, px.
        kept: why a face is left as it was, by its index.
        regions: where the generator works.
        timings: seconds by step.
    """

    picture: Picture
    mode: str
    strict: bool = False
    faces: list[Face] = field(default_factory=list)
    extents_px: list[float] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> Inputs:
        """One (3, h, w) float32 tensor a region, cut when it is asked for; `regions` must not change any more."""
        return Inputs(self.picture, self.regions)


class Inputs(Sequence[Tensor]):
    """What the generator gets, cut out of a picture when it is asked for; safe to share between threads.

    Up to `kept_px` of it is kept, so that it need not be cut again when the answer is laid back: all faces of most
    pictures, and a tile at a time where they are laid back one by one.
    """

    def __init__(self, picture: Picture, regions: Sequence[Region], kept_px: int = KEPT_PX):
        self._picture, self._regions = picture, regions
        self._room_px = kept_px
        self._kept: dict[int, Tensor] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._regions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        with self._lock:
            given = self._kept.get(index)
        if given is not None:
            return given
        given = region_input(self._picture, self._regions[index])
        with self._lock:
            if index not in self._kept and _pixels(given) <= self._room_px:
                self._kept[index] = given
                self._room_px -= _pixels(given)
        return given

    def take(self, index: int) -> Tensor:
        """An input for the last time: it is kept no longer."""
        with self._lock:
            given = self._kept.pop(index, None)
            if given is not None:
                self._room_px += _pixels(given)
                return given
        return region_input(self._picture, self._regions[index])


def _pixels(given: Tensor) -> int:
    return given.shape[1] * given.shape[2]
