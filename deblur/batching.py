"""Inputs of many sizes through the generator: equal sizes share a batch, and a batch that is too large is halved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from deblur.errors import OutOfMemory

PIXELS_A_BATCH = 1 << 20

Landing = Callable[[], Tensor]
Launch = Callable[[Tensor], Landing]


def in_batches(inputs: Sequence[Tensor], launch: Launch) -> list[Tensor]:
    """One output an input, in order.

    While one batch is under way, the next is prepared.

    Args:
        inputs: (3, h, w) float32 tensors on the CPU.
        launch: starts on a (B, 3, h, w) batch and returns the call that waits for its (B, 3, h, w) answer.

    Raises:
        OutOfMemory: a batch does not fit the device, nor do its halves.
    """
    results: list[Tensor | None] = [None] * len(inputs)
    flying: tuple[list[int], Landing] | None = None
    for chunk in _chunks(inputs):
        launched = chunk, _launch(torch.stack([inputs[i] for i in chunk]), launch)
        if flying:
            _land(flying, results)
        flying = launched
    if flying:
        _land(flying, results)
    return [r for r in results if r is not None]


def a_few_at_a_time(inputs: Sequence[Tensor], launch: Launch) -> Iterator[Tensor]:
    """Like `in_batches`, with memory bounded however many inputs there are: they are cut as they are asked for."""
    pixels, chunk = 0, []
    for given in inputs:
        chunk.append(given)
        pixels += given.shape[1] * given.shape[2]
        if pixels >= PIXELS_A_BATCH:
            yield from in_batches(chunk, launch)
            pixels, chunk = 0, []
    yield from in_batches(chunk, launch)


def _chunks(inputs: Sequence[Tensor]) -> Iterator[list[int]]:
    by_size: dict[tuple[int, ...], list[int]] = {}
    for index, given in enumerate(inputs):
        by_size.setdefault(tuple(given.shape), []).append(index)
    for (_, height, width), indices in by_size.items():
        together = max(1, PIXELS_A_BATCH // (height * width))
        for start in range(0, len(indices), together):
            yield indices[start : start + together]


def _land(flying: tuple[list[int], Landing], results: list[Tensor | None]) -> None:
    indices, land = flying
    for index, restored in zip(indices, land(), strict=True):
        results[index] = restored


def _launch(batch: Tensor, launch: Launch) -> Landing:
    try:
        return launch(batch)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(batch) == 1:
        raise OutOfMemory(f"the device has no room for one input of {tuple(batch.shape[1:])}")
    try:
        halves = [launch(half)() for half in batch.tensor_split(2)]
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise OutOfMemory(f"the device ran out of memory on {len(batch)} inputs and on half of them") from error
    return lambda: torch.cat(halves)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return "out of memory" in text or "can't allocate memory" in text
