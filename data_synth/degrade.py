"""The camera as a whole: sharp faces in, what a shaken camera would have stored out.

sRGB -> linear light -> motion -> saturation -> noise (behind a Bayer mosaic, at times) -> sRGB -> JPEG.
Every random value belongs to a sample's own seed, and every step works on the whole batch, on the device
that the tensors are on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from data_synth import camera, direct, motion
from data_synth.config import DegradeConfig
from data_synth.jpeg import compress_levels, jpeg_some
from data_synth.kernel import KernelBank, rasterise
from data_synth.streams import Streams
from data_synth.trajectory import STEPS, Trajectories, sample_trajectories
from deblur.errors import OptionError

MODES = ("uniform", "rolling", "subject")
_NOISE_VALUES = 1 << 21
_CACHED_VALUES = 1 << 17  # of a float picture, worked on at a time: what the processor's cache holds a few copies of
_UNIFORM, _ROLLING, _SUBJECT = range(3)


@dataclass(frozen=True, kw_only=True)
class Degradation:
    """What one batch went through; every attribute has one row a sample.

    Attributes:
        seeds: (B,) int64: with the config and the extent, all that is needed to do it again.
        extent_px: (B,) float32.
        mode: (B,) int64, index into MODES.
        family: (B,) int64, index into trajectory.FAMILIES.
        path_index: (B,) int64 into the bank, -1 for a path of its own.
        path_parameters: (B, 4) float32; see trajectory.PARAMETERS.
        roll_strength: (B,) float32: extent that the roll adds half a side away, over extent_px; 0 without.
        highlight_gain: (B,) float32, 1 without saturation.
        noise_sigma: (B,) float32 at stored mid-grey; 0 without noise.
        shot_share: (B,) float32.
        bayer: (B,) bool.
        jpeg_quality: (B,) int64; 0 without JPEG.
        chroma_subsampled: (B,) bool.
    """

    seeds: Tensor
    extent_px: Tensor
    mode: Tensor
    family: Tensor
    path_index: Tensor
    path_parameters: Tensor
    roll_strength: Tensor
    highlight_gain: Tensor
    noise_sigma: Tensor
    shot_share: Tensor
    bayer: Tensor
    jpeg_quality: Tensor
    chroma_subsampled: Tensor

    def rows(self, index: Tensor | slice) -> Degradation:
        """The rows of index (n,) int64, in its order, or of a slice."""
        return Degradation(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


class Degrade(torch.nn.Module):
    """Blurs a batch as real cameras do.

    Args:
        config: Strengths; see DegradeConfig. The bank of paths is drawn here (seconds at 20,000).
    """

    def __init__(self, config: DegradeConfig | None = None) -> None:
        super().__init__()
        self.config = config or DegradeConfig()
        size = self.config.bank_size
        self.bank = KernelBank(size, self.config.bank_seed, self.config.mix) if size else None
        self.noise = _NoiseTable(self.config.bank_seed)

    @torch.no_grad()
    def forward(
        self,
        sharp: Tensor,
        extent_px: Tensor | None = None,
        generator: torch.Generator | None = None,
        seeds: Tensor | None = None,
    ) -> tuple[Tensor, Degradation]:
        """Degrades a batch.

        Args:
            sharp: (B, 3, H, W) float32 in [0, 1], or uint8 levels (to the same result, a little sooner).
            extent_px: (B,) blur extents, px; drawn from the config where None.
            generator: Source of the samples' seeds; torch's global one where None.
            seeds: (B,) int64, one a sample; replaces the generator. The same seed gives the same result in
                any batch.

        Returns:
            The blurred batch, (B, 3, H, W) float32 in [0, 1], and what it went through.

        Raises:
            OptionError: The batch, the extents or the seeds do not have the shape or values stated.
        """
        _check(sharp, extent_px, seeds)
        if seeds is None:
            where = generator.device if generator is not None else sharp.device
            seeds = torch.randint(1 << 62, (len(sharp),), generator=generator, device=where)
        seeds = seeds.to(sharp.device)
        if self.noise.values.device != sharp.device:
            self.to(sharp.device)
        drawn, paths = self._draw(seeds, extent_px, min(sharp.shape[-2:]))
        side = min(sharp.shape[-2:])
        roll = self._roll(drawn, side)
        if sharp.device.type == "cpu":
            return self._one_by_one(sharp, drawn, _plan(paths, roll, drawn, side)), drawn
        # Rows of a kind side by side: they are worked on where they lie, without gathering them each time.
        order = torch.argsort(drawn.mode, stable=True)
        light, rows = self._read(sharp[order], drawn.rows(order))
        offsets = self.noise.offsets(rows.seeds, sharp[:1].numel())
        stored = self._sense(
            self._move(light, paths[order], roll[order], rows).clamp_(0.0, 1.0), rows, offsets, self._gains(rows.seeds)
        )
        if self.config.eight_bit:
            stored = stored.mul_(255.0).round_().div_(255.0)
        return jpeg_some(stored, rows.jpeg_quality, rows.chroma_subsampled)[torch.argsort(order)], drawn

    def _one_by_one(self, sharp: Tensor, drawn: Degradation, plan: list[Shot]) -> Tensor:
        """The same on the CPU: a few pictures at a time, as many as its cache holds, each blurred on its own."""
        count, _, height, width = sharp.shape
        result = np.empty((count, height, width, 3), np.float32)
        offsets, gains = self.noise.offsets(drawn.seeds, height * width * 3), self._gains(drawn.seeds)
        size = max(1, _CACHED_VALUES // max(1, height * width * 3))
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            light, rows = self._read(sharp[part], drawn.rows(part))
            moved = torch.empty_like(light)
            for i, shot in enumerate(plan[part]):
                if shot.subject:
                    one, path, extent = light[i : i + 1].contiguous(), shot.path, rows.extent_px[i : i + 1]
                    moved[i : i + 1] = motion.blur_subject(one, path, extent, self._matte(rows.seeds[i : i + 1], one))
                else:
                    shot.blur(light[i].permute(1, 2, 0).numpy(), moved[i].permute(1, 2, 0).numpy())
            if self.config.eight_bit:
                levels = self._sense_levels(moved, rows, offsets[part], gains[part])
                camera.shown(compress_levels(levels, rows.jpeg_quality, rows.chroma_subsampled), out=result[part])
            else:
                stored = self._sense(moved.clamp_(0.0, 1.0), rows, offsets[part], gains[part])
                stored = jpeg_some(stored, rows.jpeg_quality, rows.chroma_subsampled)
                result[part] = stored.permute(0, 2, 3, 1).numpy()
        return torch.from_numpy(result).permute(0, 3, 1, 2)

    def _read(self, sharp: Tensor, drawn: Degradation) -> tuple[Tensor, Degradation]:
        """The light that (B, 3, H, W) float or uint8 stands for, and the rows that it came with."""
        light = camera.read(sharp, linear=self.config.linear_light)
        rows = (drawn.highlight_gain > 1.0).nonzero(as_tuple=True)[0]
        if len(rows):
            gain, start = drawn.highlight_gain[rows], self.config.saturation_start
            light[rows] = camera.raise_highlights(light[rows].contiguous(), gain, start)
        return light, drawn

    def _roll(self, drawn: Degradation, side: int) -> Tensor:
        """Angles (B, STEPS) over the exposure, radians; 0 where the camera does not roll."""
        rows = (drawn.mode == _ROLLING).nonzero(as_tuple=True)[0]
        roll = torch.zeros(len(drawn.mode), STEPS, device=rows.device)
        if len(rows):
            # The roll follows a path of its own: a smooth one, by the sample's seed.
            angles = sample_trajectories(drawn.seeds[rows] ^ 1, (0.0, 1.0, 0.0)).paths[:, 0]
            far_px = drawn.roll_strength[rows] * drawn.extent_px[rows]
            roll[rows] = angles * (far_px / (side / 2.0))[:, None]
        return roll

    def _draw(self, seeds: Tensor, extent_px: Tensor | None, side: int) -> tuple[Degradation, Tensor]:
        config, streams = self.config, Streams(seeds, ahead=14 if self.config.extent_px is None else 15)
        fraction, near = streams.between(config.extent_fraction), streams.uniform()
        drawn_px = fraction * side if config.extent_px is None else streams.between(config.extent_px)
        sharp = streams.chance(config.sharp_share)
        drawn_px = torch.where(sharp, near * config.sharp_extent_px, drawn_px)
        extent = drawn_px if extent_px is None else extent_px.to(seeds.device, torch.float32)
        choice = streams.uniform()
        mode = (choice < config.rotation_share + config.subject_share).long() * _SUBJECT
        mode = torch.where(choice < config.rotation_share, _ROLLING, mode)
        strength = streams.between(config.rotation_strength)
        gain = torch.where(streams.chance(config.saturation_share), streams.between(config.saturation_gain), 1.0)
        noisy, sigma = streams.chance(config.noise_share), streams.log_between(config.noise_sigma)
        shot = streams.between(config.shot_share)
        bayer = streams.chance(config.bayer_share)
        low, high = config.jpeg_quality
        quality = (low + (streams.uniform() * (high + 1 - low)).floor()).long().clamp(low, high)
        compressed = streams.chance(config.jpeg_share)
        subsampled = streams.chance(config.chroma_subsampling_share) & compressed
        drawn_paths, index = self.draw_paths(seeds)
        return Degradation(
            seeds=seeds,
            extent_px=extent,
            mode=mode,
            family=drawn_paths.family,
            path_index=index,
            path_parameters=drawn_paths.parameters,
            roll_strength=torch.where(mode == _ROLLING, strength, 0.0),
            highlight_gain=gain,
            noise_sigma=torch.where(noisy, sigma, 0.0),
            shot_share=shot,
            bayer=bayer,
            jpeg_quality=torch.where(compressed, quality, 0),
            chroma_subsampled=subsampled,
        ), drawn_paths.paths

    def draw_paths(self, seeds: Tensor) -> tuple[Trajectories, Tensor]:
        """The unit-extent paths that samples of these seeds take.

        Args:
            seeds: (B,) int64.

        Returns:
            The paths, and (B,) int64 of their places in the bank (-1 without one).
        """
        if self.bank is None:
            return sample_trajectories(seeds, self.config.mix), torch.full_like(seeds, -1)
        bank = self.bank
        choice = Streams(seeds, purpose=6).uniform()
        index = (choice * len(bank)).long().clamp_max(len(bank) - 1)
        chosen = Trajectories(
            paths=bank.paths[index], family=bank.family[index], parameters=bank.path_parameters[index]
        )
        return chosen, index

    def _move(self, light: Tensor, paths: Tensor, roll: Tensor, drawn: Degradation) -> Tensor:
        result = torch.empty_like(light)
        start = 0
        for mode, count in zip(*(t.tolist() for t in drawn.mode.unique_consecutive(return_counts=True)), strict=True):
            rows = slice(start, start + count)
            start += count
            part, path, extent = light[rows], paths[rows], drawn.extent_px[rows]
            if mode == _UNIFORM:
                result[rows] = motion.blur_uniform(part, path, extent)
            elif mode == _ROLLING:
                result[rows] = motion.blur_rolling(part, path, extent, roll[rows])
            else:
                part = part.contiguous()
                result[rows] = motion.blur_subject(part, path, extent, self._matte(drawn.seeds[rows], part))
        return result

    def _matte(self, seeds: Tensor, images: Tensor) -> Tensor:
        streams = Streams(seeds, purpose=3, ahead=4)
        centre = torch.stack([streams.between((0.45, 0.55)), streams.between((0.47, 0.57))], 1)
        radii = torch.stack([streams.between((0.30, 0.40)), streams.between((0.40, 0.50))], 1)
        return motion.soft_ellipse(images.shape[2], images.shape[3], centre, radii)

    def _sense(self, light: Tensor, drawn: Degradation, offsets: list[int], gains: Tensor) -> Tensor:
        config = self.config
        if config.noise_share == 0 and config.bayer_share == 0:
            return camera.to_stored(light) if config.linear_light else light
        noise = self.noise(offsets, light)
        if not config.noise_in_linear_light:
            stored = camera.to_stored(light) if config.linear_light else light
            zero = torch.zeros_like(drawn.noise_sigma)
            return camera.add_noise(stored, zero, drawn.noise_sigma**2, noise).clamp_(0.0, 1.0)
        if not config.linear_light:
            light = camera.to_linear(light)
        shot, read = camera.linear_noise_levels(drawn.noise_sigma, drawn.shot_share)
        sensed = camera.add_noise(light, shot, read, noise).clamp_(0.0, 1.0)
        rows = drawn.bayer.nonzero(as_tuple=True)[0]
        if len(rows):
            gains = gains[rows]
            sites = camera.mosaic_sites(light.shape[2], light.shape[3], light.device)
            # Colour by colour in memory: what differs between colours is slow the other way.
            raw = light[rows].contiguous().div_(gains)
            raw = camera.add_noise(raw, shot[rows], read[rows], noise[rows].contiguous()).clamp_(0.0, 1.0)
            sensed[rows] = camera.demosaic(raw.mul_(sites)).mul_(gains).clamp_(0.0, 1.0)
        return camera.to_stored(sensed)

    def _sense_levels(self, light: Tensor, drawn: Degradation, offsets: list[int], gains: Tensor) -> np.ndarray:
        """`_sense` in 8-bit levels (B, H, W, 3), picture by picture."""
        config = self.config
        if not (config.linear_light and config.noise_in_linear_light and config.noise_share):
            return camera.levels(self._sense(light.clamp_(0.0, 1.0), drawn, offsets, gains))
        result = np.empty((len(light), *light.shape[2:], 3), np.uint8)
        pictures, noise = light.permute(0, 2, 3, 1).numpy(), self.noise
        levels = torch.stack(camera.linear_noise_levels(drawn.noise_sigma, drawn.shot_share), 1).tolist()
        for i, bayer in enumerate(drawn.bayer.tolist()):
            one = slice(i, i + 1)
            if bayer:
                clipped = light[one].clamp_(0.0, 1.0)
                result[one] = camera.levels(self._sense(clipped, drawn.rows(one), offsets[one], gains[one]))
            else:
                result[i] = camera.noisy_levels(
                    pictures[i], levels[i][0], levels[i][1], noise.run(offsets[i], pictures[i].shape)
                )
        return result

    def _gains(self, seeds: Tensor) -> Tensor:
        streams = Streams(seeds, purpose=4, ahead=2)
        red, blue = (streams.between(self.config.white_balance_gain) for _ in range(2))
        return torch.stack([red, torch.ones_like(red), blue], 1)[..., None, None]


@dataclass(frozen=True, kw_only=True)
class Shot:
    """How the CPU blurs one picture.

    Attributes:
        kernels: (N, K, K) float32; None where nothing moves, or the subject alone.
        angles: N angles that the picture is turned by, radians; None where it is not turned.
        path: (1, 2, STEPS) unit path.
        subject: The subject moves alone.
    """

    kernels: np.ndarray | None
    angles: list[float] | None
    path: Tensor
    subject: bool

    def blur(self, picture: np.ndarray, out: np.ndarray) -> None:
        """Blurs a picture (H, W, 3) into another."""
        if self.kernels is None:
            np.copyto(out, picture)
        elif self.angles is None:
            direct.convolve(picture, self.kernels[0], out)
        else:
            direct.convolve_turned(picture, self.angles, self.kernels, out)


def _plan(paths: Tensor, roll: Tensor, drawn: Degradation, side: int) -> list[Shot]:
    """Kernels of a whole batch, drawn together: picture by picture would take several times as long."""
    kernels: list[np.ndarray | None] = [None] * len(paths)
    angles: list[list[float] | None] = [None] * len(paths)
    chosen = (drawn.mode == _UNIFORM).nonzero(as_tuple=True)[0]
    for rows, points in motion.shifts(paths[chosen], drawn.extent_px[chosen]):
        for row, kernel in zip(chosen[rows].tolist(), rasterise(points).numpy(), strict=True):
            kernels[row] = kernel[None]
    chosen = (drawn.mode == _ROLLING).nonzero(as_tuple=True)[0]
    for rows, turns, layers in motion.rolls(paths[chosen], drawn.extent_px[chosen], roll[chosen], side):
        for row, radians, kernel in zip(chosen[rows].tolist(), turns.tolist(), layers.numpy(), strict=True):
            kernels[row], angles[row] = kernel, radians
    subject = (drawn.mode == _SUBJECT).tolist()
    return [
        Shot(kernels=kernel, angles=radians, path=path[None], subject=alone)
        for kernel, radians, path, alone in zip(kernels, angles, paths, subject, strict=True)
    ]


class _NoiseTable(torch.nn.Module):
    """Standard normal numbers, drawn once; a sample reads a run of them at an offset of its own seed.

    Hashing or drawing a number for every pixel would cost more than the blur. Two samples meet in the table
    now and then, at an offset that training never sees twice.
    """

    values: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("values", torch.randn(_NOISE_VALUES, generator=generator), persistent=False)

    def offsets(self, seeds: Tensor, count: int) -> list[int]:
        """Where the runs of `count` numbers of samples (B,) begin."""
        return (Streams(seeds, purpose=5).uniform() * (self._length(count) - count)).long().tolist()

    def _length(self, count: int) -> int:
        length = len(self.values)
        return length if count < length // 2 else length * (2 * count // length + 2)

    def run(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers for one picture on the CPU: a view, (H, W, C), of what `forward` gives it."""
        count = math.prod(shape)
        return self._values(count)[offset : offset + count].view(shape).numpy()

    def _values(self, count: int) -> Tensor:
        times = self._length(count) // len(self.values)
        return self.values.repeat(times) if times > 1 else self.values

    def forward(self, offsets: list[int], like: Tensor) -> Tensor:
        """Numbers for a batch (B, C, H, W), in its shape."""
        channels, height, width = like.shape[1:]
        count = channels * height * width
        values = self._values(count)
        runs = torch.stack([values[start : start + count] for start in offsets])
        return runs.view(-1, height, width, channels).permute(0, 3, 1, 2)


def _check(sharp: Tensor, extent_px: Tensor | None, seeds: Tensor | None) -> None:
    if sharp.ndim != 4 or sharp.shape[1] != 3 or not (sharp.is_floating_point() or sharp.dtype == torch.uint8):
        raise OptionError(
            f"sharp: expected float in [0, 1] or uint8, (B, 3, H, W), got {sharp.dtype} {tuple(sharp.shape)}"
        )
    for name, value in (("extent_px", extent_px), ("seeds", seeds)):
        if value is not None and value.shape != (len(sharp),):
            raise OptionError(f"{name}: expected shape ({len(sharp)},), one a sample, got {tuple(value.shape)}")
    if extent_px is not None and len(extent_px) and not bool((extent_px >= 0).all()):
        raise OptionError("extent_px: expected values >= 0")
