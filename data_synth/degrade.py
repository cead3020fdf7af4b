"""The camera as a whole: sharp faces in, what a shaken camera would have stored out.

sRGB -> linear light -> motion -> saturation -> noise (behind a Bayer mosaic, at times) -> sRGB -> JPEG.
Every random value belongs to a sample's own seed, and every step works on the whole batch, on the device
that the tensors are on.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from data_synth import camera, motion
from data_synth.config import DegradeConfig
from data_synth.jpeg import jpeg
from data_synth.kernel import KernelBank
from data_synth.streams import Streams
from data_synth.trajectory import Trajectories, sample_trajectories
from deblur.errors import OptionError

MODES = ("uniform", "rolling", "subject")
_NOISE_VALUES = 1 << 21
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

    def rows(self, index: Tensor) -> "Degradation":
        """The rows of index (n,) int64, in its order."""
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
            sharp: (B, 3, H, W) float32 in [0, 1].
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
        # Rows of a kind side by side: they are worked on where they lie, without gathering them each time.
        kind = drawn.mode * 64 + motion.size_group(drawn.extent_px)
        order = torch.argsort(kind, stable=True)
        sorted_rows = drawn.rows(order)
        light = sharp[order]
        if self.config.linear_light:
            light = camera.to_linear(light)
        rows = (sorted_rows.highlight_gain > 1.0).nonzero(as_tuple=True)[0]
        if len(rows):
            gain, start = sorted_rows.highlight_gain[rows], self.config.saturation_start
            light[rows] = camera.raise_highlights(light[rows], gain, start)
        light = self._move(light, paths[order], sorted_rows, kind[order]).clamp_(0.0, 1.0)
        stored = self._sense(light, sorted_rows)
        if self.config.eight_bit:
            stored = stored.mul_(255.0).round_().div_(255.0)
        return self._compress(stored, sorted_rows)[torch.argsort(order)], drawn

    def _draw(self, seeds: Tensor, extent_px: Tensor | None, side: int) -> tuple[Degradation, Tensor]:
        config, streams = self.config, Streams(seeds)
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

    def _move(self, light: Tensor, paths: Tensor, drawn: Degradation, kind: Tensor) -> Tensor:
        result = torch.empty_like(light)
        start = 0
        for value, count in zip(*(t.tolist() for t in torch.unique_consecutive(kind, return_counts=True)), strict=True):
            rows = slice(start, start + count)
            start += count
            part, path, extent = light[rows], paths[rows], drawn.extent_px[rows]
            if value // 64 == _UNIFORM:
                result[rows] = motion.blur_uniform(part, path, extent)
            elif value // 64 == _ROLLING:
                # The roll follows a path of its own: a smooth one, by the sample's seed.
                angles = sample_trajectories(drawn.seeds[rows] ^ 1, (0.0, 1.0, 0.0)).paths[:, 0]
                radius = min(light.shape[-2:]) / 2.0
                angles = angles * (drawn.roll_strength[rows] * extent / radius)[:, None]
                result[rows] = motion.blur_rolling(part, path, extent, angles)
            else:
                result[rows] = motion.blur_subject(part, path, extent, self._matte(drawn.seeds[rows], part))
        return result

    def _matte(self, seeds: Tensor, images: Tensor) -> Tensor:
        streams = Streams(seeds, purpose=3)
        centre = torch.stack([streams.between((0.45, 0.55)), streams.between((0.47, 0.57))], 1)
        radii = torch.stack([streams.between((0.30, 0.40)), streams.between((0.40, 0.50))], 1)
        return motion.soft_ellipse(images.shape[2], images.shape[3], centre, radii)

    def _sense(self, light: Tensor, drawn: Degradation) -> Tensor:
        config = self.config
        if config.noise_share == 0 and config.bayer_share == 0:
            return camera.to_stored(light) if config.linear_light else light
        noise = self.noise(drawn.seeds, light)
        if not config.noise_in_linear_light:
            stored = camera.to_stored(light) if config.linear_light else light
            zero = torch.zeros_like(drawn.noise_sigma)
            return camera.add_noise(stored, zero, drawn.noise_sigma**2, noise).clamp_(0.0, 1.0)
        if not config.linear_light:
            light = camera.to_linear(light)
        shot, read = camera.linear_noise_levels(drawn.noise_sigma, drawn.shot_share)
        rows = drawn.bayer.nonzero(as_tuple=True)[0]
        gains = self._gains(drawn.seeds[rows])  # (rows, 3, 1, 1)
        if len(rows):
            light[rows] /= gains
        sensed = camera.add_noise(light, shot, read, noise).clamp_(0.0, 1.0)
        if len(rows):
            sites = camera.mosaic_sites(light.shape[2], light.shape[3], light.device)
            sensed[rows] = camera.demosaic(sensed[rows] * sites).mul_(gains).clamp_(0.0, 1.0)
        return camera.to_stored(sensed)

    def _gains(self, seeds: Tensor) -> Tensor:
        streams = Streams(seeds, purpose=4)
        red, blue = (streams.between(self.config.white_balance_gain) for _ in range(2))
        return torch.stack([red, torch.ones_like(red), blue], 1)[..., None, None]

    def _compress(self, stored: Tensor, drawn: Degradation) -> Tensor:
        for subsample in (False, True):
            chosen = (drawn.jpeg_quality > 0) & (drawn.chroma_subsampled == subsample)
            rows = chosen.nonzero(as_tuple=True)[0]
            if len(rows):
                stored[rows] = jpeg(stored[rows], drawn.jpeg_quality[rows], subsample)
        return stored


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

    def forward(self, seeds: Tensor, like: Tensor) -> Tensor:
        count = like[0].numel()
        values = self.values
        if count >= len(values) // 2:
            values = values.repeat(2 * count // len(values) + 2)
        offset = (Streams(seeds, purpose=5).uniform() * (len(values) - count)).long()
        return torch.stack([values[start : start + count] for start in offset.tolist()]).view(like.shape)


def _check(sharp: Tensor, extent_px: Tensor | None, seeds: Tensor | None) -> None:
    if sharp.ndim != 4 or sharp.shape[1] != 3 or not sharp.is_floating_point():
        raise OptionError(f"sharp: expected float (B, 3, H, W) in [0, 1], got {sharp.dtype} {tuple(sharp.shape)}")
    for name, value in (("extent_px", extent_px), ("seeds", seeds)):
        if value is not None and value.shape != (len(sharp),):
            raise OptionError(f"{name}: expected shape ({len(sharp)},), one a sample, got {tuple(value.shape)}")
    if extent_px is not None and len(extent_px) and not bool((extent_px >= 0).all()):
        raise OptionError("extent_px: expected values >= 0")
