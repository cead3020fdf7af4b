"""The gated generator on a CPU, by oneDNN's own convolutions: the same function, with less moved about.

PyTorch puts the weights in the order that oneDNN multiplies them in at each call; for one face of 128 px that takes as
long as half of the arithmetic. Here it is done once a size of input. A convolution adds to the sum that it belongs
to, in place; and as channels lie innermost in memory, pixel shuffles are views once the channels are sorted for them.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from deblur.folding import FoldedBlock, folded
from deblur.generator import ChannelNorm, GatedUNet, pad_to_multiple

_log = logging.getLogger("deblur.packed")

SIZES_KEPT = 6  # each may hold the weights in an order of its own: 16 MB in bfloat16, 32 MB in float32
LARGEST_PX = 1 << 18  # of an input that ordered weights are kept for; with more pixels they save little


def runs_here(dtype: torch.dtype) -> bool:
    """Whether this machine and this PyTorch have what `PackedUNet` calls, for a number format."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    known = torch.cpu.get_capabilities()
    unit = {torch.float32: "avx2", torch.bfloat16: "avx512_bf16"}.get(dtype, "")
    return bool(known.get(unit)) and hasattr(torch.ops.mkldnn, "_reorder_convolution_weight")


def packed(generator: GatedUNet, dtype: torch.dtype) -> PackedUNet | None:
    """A generator in that form, tried out; None where PyTorch's own operators, which no version promises, differ."""
    smallest = torch.zeros(1, 3, *[generator.config.multiple] * 2)
    try:
        made = PackedUNet(generator, dtype)
        for _ in range(2):  # the second time with weights in order
            made(smallest)
    except (RuntimeError, TypeError, AttributeError) as error:
        _log.warning("the CPU's fast form of the generator does not run with torch %s: %s", torch.__version__, error)
        return None
    made._sizes.clear()
    return made


class PackedUNet:
    """A gated generator for inference on a CPU; safe to share between threads.

    A size that comes for the first time finds the weights in PyTorch's order, and from the second time on in
    oneDNN's: pictures that are all of different sizes pay for no order that is used once.

    Args:
        generator: float32; stays as it is.
        dtype: float32 or bfloat16, where `runs_here` says so.
        kept: sizes of input that weights are kept in order for.
    """

    def __init__(self, generator: GatedUNet, dtype: torch.dtype, kept: int = SIZES_KEPT):
        self._config, self._dtype, self._kept = generator.config, dtype, kept
        self._net = folded(generator, dtype)
        for module in self._net.modules():
            if isinstance(module, ChannelNorm):
                module.float()  # a tenth faster than with weights that it must widen for each pixel
        self._sort_channels()
        self._plain = _Layers.of(self._net, Convolution.of)
        self._sizes: OrderedDict[tuple[int, ...], _Layers | None] = OrderedDict()
        self._shared: WeakValueDictionary[tuple[int, bytes], Tensor] = WeakValueDictionary()
        self._lock = threading.Lock()

    @torch.inference_mode()
    def __call__(self, blurred: Tensor) -> Tensor:
        """(B, 3, H, W) float32 in [0, 1], any H, W >= 1, to the same shape, unclipped."""
        height, width = blurred.shape[-2:]
        padded = pad_to_multiple(blurred, self._config.multiple)
        return self._on_grid(padded)[..., :height, :width]

    def _on_grid(self, padded: Tensor) -> Tensor:
        factor, layers = self._config.stem, self._layers_for(padded)
        cells = _cells(padded.permute(0, 2, 3, 1).contiguous(), factor)  # (B, h, w, factor, 3 * factor)
        centred = torch.empty(cells.shape, dtype=self._dtype).copy_(cells - 0.5)
        residual = layers(centred.flatten(3).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, h, w, 3 * factor**2)
        # Low precision ends here: the picture that the residual is added to keeps its own.
        restored = cells.transpose(2, 3) + residual.unflatten(3, (factor, -1)).transpose(2, 3)
        return restored.view(len(padded), *padded.shape[2:], 3).permute(0, 3, 1, 2)

    def _sort_channels(self) -> None:
        """From PyTorch's order of shuffled channels, (channel, row, column), to (row, column, channel)."""
        net, squares = self._net, self._config.stem**2
        net.stem.weight.data = _sorted(net.stem.weight, 1, squares)
        for layer, count in ((net.head, squares), *((layer, 4) for layer in net.grow)):
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            layer.weight.data = _sorted(layer.weight, 0, count)
            layer.bias.data = _sorted(layer.bias, 0, count)

    def _layers_for(self, padded: Tensor) -> _Layers:
        count, _, height, width = padded.shape
        if count * height * width > LARGEST_PX:
            return self._plain
        # oneDNN's order depends on the number of threads too.
        size = (count, height // self._config.stem, width // self._config.stem, torch.get_num_threads())
        with self._lock:
            known, layers = size in self._sizes, self._sizes.pop(size, None)
            if known and layers is None:
                layers = self._in_order(size)
            self._sizes[size] = layers
            while len(self._sizes) > self._kept:
                self._sizes.popitem(last=False)
        return layers or self._plain

    def _in_order(self, size: tuple[int, ...]) -> _Layers:
        def ordered(module: nn.Conv2d, level: int) -> Convolution:
            shape = size[0], module.in_channels, size[1] >> level, size[2] >> level
            made = Convolution.of(module, level).ordered(shape)
            order = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(made.weight).tolist())
            # Batches of one size mostly share an order.
            return replace(made, weight=self._shared.setdefault((id(module), order), made.weight))

        return _Layers.of(self._net, ordered)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution with its weights in PyTorch's or oneDNN's order."""

    weight: Tensor
    bias: Tensor
    how: tuple[list[int], list[int], list[int], int]  # padding, stride, dilation, groups

    @classmethod
    def of(cls, module: nn.Conv2d, level: int = 0) -> Convolution:
        """That of a module, at any level of the network."""
        assert module.bias is not None
        how = [int(side) for side in module.padding], list(module.stride), list(module.dilation), module.groups
        return cls(weight=module.weight, bias=module.bias, how=how)

    def ordered(self, shape: tuple[int, ...]) -> Convolution:
        """The same with its weights in the order that suits an input of (B, C, H, W) best."""
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        return replace(self, weight=reorder(self.weight, *self.how, list(shape)))

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to what the convolution makes of it."""
        convolve = torch.ops.mkldnn._convolution_pointwise
        return convolve(x, self.weight, self.bias, *self.how, "none", [], "")

    def onto(self, total: Tensor, x: Tensor) -> Tensor:
        """Adds what the convolution makes of `x` to `total`, in place."""
        convolve = torch.ops.mkldnn._convolution_pointwise_
        return convolve(total, x, self.weight, self.bias, *self.how, "add", None, None, [], None)


@dataclass(frozen=True, kw_only=True)
class _Block:
    norm: ChannelNorm
    expand: Convolution
    project: Convolution

    def __call__(self, x: Tensor) -> Tensor:
        """(B, C, H, W), which it changes in place."""
        channels, norm = x.shape[1], self.norm
        # As `norm` does, without the time that a call of a module takes: a fiftieth of all for one small face.
        even = torch.layer_norm(x.permute(0, 2, 3, 1), [channels], norm.weight, norm.bias, norm.EPSILON)
        both = self.expand(even.permute(0, 3, 1, 2))
        return self.project.onto(x, both.narrow(1, 0, channels) * both.narrow(1, channels, channels))


Stage = tuple[_Block, ...]
Make = Callable[[nn.Conv2d, int], Convolution]  # of a module and its input's level: 0 is the finest


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """All that lies between the picture's cells and their residual."""

    stem: Convolution
    encoders: tuple[Stage, ...]
    shrink: tuple[Convolution, ...]
    grow: tuple[Convolution, ...]
    decoders: tuple[Stage, ...]
    head: Convolution

    @classmethod
    def of(cls, net: GatedUNet, make: Make) -> _Layers:
        deepest = len(net.shrink)
        return cls(
            stem=make(net.stem, 0),
            encoders=tuple(_stage(stage, level, make) for level, stage in enumerate(net.encoders)),
            shrink=tuple(make(layer, level) for level, layer in enumerate(net.shrink)),  # type: ignore[arg-type]
            grow=tuple(make(layer, deepest - i) for i, layer in enumerate(net.grow)),  # type: ignore[arg-type]
            decoders=tuple(_stage(stage, deepest - 1 - i, make) for i, stage in enumerate(net.decoders)),
            head=make(net.head, 0),
        )

    def __call__(self, cells: Tensor) -> Tensor:
        """(B, 3 * stem**2, h, w) to the same shape, channels last."""
        x, skips = self.stem(cells), list[Tensor]()
        for encoder, shrink in zip(self.encoders, self.shrink, strict=False):
            skips.append(_through(encoder, x))
            x = shrink(skips[-1])
        x = _through(self.encoders[-1], x)
        for grow, decoder in zip(self.grow, self.decoders, strict=True):
            x = _through(decoder, _add_shuffled(skips.pop(), grow(x)))
        return self.head(x)


def _stage(blocks: nn.Module, level: int, make: Make) -> Stage:
    assert isinstance(blocks, nn.Sequential)
    made = []
    for block in blocks:
        assert isinstance(block, FoldedBlock)
        made.append(_Block(norm=block.norm, expand=make(block.expand, level), project=make(block.project, level)))
    return tuple(made)


def _through(stage: Stage, x: Tensor) -> Tensor:
    for block in stage:
        x = block(x)
    return x


def _add_shuffled(total: Tensor, x: Tensor) -> Tensor:
    """Adds the 2x pixel shuffle of (B, 4 * C, h, w) to (B, C, 2 * h, 2 * w), in place; both have channels last."""
    rows = x.permute(0, 2, 3, 1).unflatten(3, (2, -1)).transpose(2, 3)  # (B, h, 2, w, 2 * C)
    total.permute(0, 2, 3, 1).view(rows.shape).add_(rows)
    return total


def _cells(picture: Tensor, factor: int) -> Tensor:
    """(B, H, W, 3) as a view of (B, H / factor, W / factor, factor, 3 * factor): the rows of each cell."""
    count, height, width, channels = picture.shape
    rows = picture.view(count, height // factor, factor, width // factor, channels * factor)
    return rows.transpose(2, 3)


def _sorted(parameter: Tensor, axis: int, squares: int) -> Tensor:
    """A parameter with (channel, place) along an axis, as (place, channel)."""
    moved = parameter.detach().unflatten(axis, (-1, squares)).transpose(axis, axis + 1).flatten(axis, axis + 1)
    return moved.contiguous(memory_format=torch.channels_last) if moved.dim() == 4 else moved.contiguous()
