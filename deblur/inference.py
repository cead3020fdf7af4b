"""The generator as it runs: folded, in the device's number format, a batch in and a batch out.

On CUDA a batch is launched and collected later, so that the copies and the work on the host for one batch pass
beside the arithmetic of another. With `optimize="graphs"` each input size is captured once and replayed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from deblur.batching import Landing
from deblur.errors import OptionError
from deblur.folding import folded
from deblur.generator import GatedUNet
from deblur.packed import packed, runs_here

Optimize = Literal["none", "graphs", "compile"]
Call = Callable[[Tensor], Tensor]
GRAPHS_KEPT = 32  # each holds its own input, output and workspace


class Runner:
    """Runs a generator on a device; safe to share between threads.

    Args:
        generator: module on the device, float32; kept for the answers that low precision cannot give.
        device: where it is.
        dtype: float32, bfloat16 or float16.
        optimize: `none`; `graphs` replays one CUDA graph an input size (elsewhere the same, without a graph);
            `compile` passes the generator through torch.compile, which takes a minute an input size and needs a
            C++ compiler on a CPU.

    Raises:
        OptionError: `optimize` is not known.
    """

    def __init__(self, generator: nn.Module, device: torch.device, dtype: torch.dtype, optimize: Optimize = "none"):
        if optimize not in get_args(Optimize):
            raise OptionError(f"optimize: expected one of {', '.join(get_args(Optimize))}, got {optimize!r}")
        self.device, self.dtype = device, dtype
        self._exact = generator
        self._call = _fast_call(generator, device, dtype, optimize)
        if optimize == "compile":
            self._call = torch.compile(self._call, dynamic=False)
        elif optimize == "graphs":
            self._call = SizeGraphs(self._call, device)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.inference_mode()
    def launch(self, batch: Tensor) -> Landing:
        """Starts on a batch.

        Args:
            batch: (B, 3, H, W) float32 on the CPU, in [0, 1].

        Returns:
            A call that waits for and returns (B, 3, H, W) float32 on the CPU, unclipped. Where low precision gave a
            value that is not finite, it is float32's answer: never a black picture.
        """
        if self._copies is not None:
            return self._launch_on_cuda(batch, self._copies)
        given = batch.to(self.device, memory_format=torch.channels_last)
        restored = self._call(given).float().cpu()
        return lambda: self._finite(batch, restored)

    @torch.inference_mode()
    def on_device(self, given: Tensor) -> Tensor:
        """(B, 3, H, W) float32 on the device, channels last, to the same shape; no look at what is not finite."""
        return self._call(given)

    def _launch_on_cuda(self, batch: Tensor, copies: torch.cuda.Stream) -> Landing:
        work = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(copies):
            given = batch.pin_memory().to(self.device, non_blocking=True)
        work.wait_stream(copies)
        given.record_stream(work)  # the allocator must not reuse it for the next copy before the work is done
        restored = self._call(given.contiguous(memory_format=torch.channels_last)).float().contiguous()
        copies.wait_stream(work)
        done = torch.cuda.Event()
        with torch.cuda.stream(copies):
            landed = torch.empty(restored.shape, dtype=restored.dtype, pin_memory=True)
            landed.copy_(restored, non_blocking=True)
            restored.record_stream(copies)
            done.record(copies)

        def land() -> Tensor:
            done.synchronize()
            return self._finite(batch, landed)

        return land

    @torch.inference_mode()
    def _finite(self, batch: Tensor, restored: Tensor) -> Tensor:
        if self.dtype == torch.float32 or bool(torch.isfinite(restored).all()):
            return restored
        return self._exact(batch.to(self.device, memory_format=torch.channels_last)).cpu()


@dataclass(frozen=True, kw_only=True)
class _Captured:
    given: Tensor
    restored: Tensor
    replay: Callable[[], None]


class SizeGraphs:
    """Answers from one captured graph an input size; batches are filled up to a power of two to share graphs.

    A device other than CUDA has no graphs: there the call is made anew into the same buffers.
    """

    def __init__(self, call: Call, device: torch.device, kept: int = GRAPHS_KEPT):
        self._call, self._kept = call, kept
        self._capture = _capture_on_cuda if device.type == "cuda" else _capture_nothing
        self._captured: OrderedDict[tuple[int, ...], _Captured] = OrderedDict()
        self._lock = threading.Lock()  # the buffers are shared

    def __call__(self, given: Tensor) -> Tensor:
        """(B, 3, H, W) to the same shape."""
        count, *rest = given.shape
        shape = (1 << (count - 1).bit_length(), *rest)
        with self._lock:
            entry = self._captured.get(shape)
            if entry is None:
                while len(self._captured) >= self._kept:
                    self._captured.popitem(last=False)
                entry = self._captured[shape] = self._capture(self._call, given.new_zeros(shape))
            self._captured.move_to_end(shape)
            entry.given[:count].copy_(given)
            entry.replay()
            return entry.restored[:count].clone()


def _capture_on_cuda(call: Call, given: Tensor) -> _Captured:
    given = given.contiguous(memory_format=torch.channels_last)
    side = torch.cuda.Stream(given.device)
    side.wait_stream(torch.cuda.current_stream(given.device))
    with torch.cuda.stream(side):
        for _ in range(3):  # libraries choose their kernels and workspaces before the capture
            call(given)
    torch.cuda.current_stream(given.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        restored = call(given)
    return _Captured(given=given, restored=restored, replay=graph.replay)


def _capture_nothing(call: Call, given: Tensor) -> _Captured:
    given = given.contiguous(memory_format=torch.channels_last)
    restored = torch.empty_like(call(given))

    def replay() -> None:
        restored.copy_(call(given))

    return _Captured(given=given, restored=restored, replay=replay)


def _fast_call(generator: nn.Module, device: torch.device, dtype: torch.dtype, optimize: Optimize) -> Call:
    if isinstance(generator, GatedUNet):
        fast = None
        if device.type == "cpu" and optimize != "compile" and runs_here(dtype):  # there is nothing in it to compile
            fast = packed(generator, dtype)
        return fast or folded(generator, dtype)

    def with_autocast(given: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            return generator(given)

    return with_autocast
