"""Random camera paths, a whole batch at once.

Three families, each of unit extent (the larger side of the path's bounding box is 1), sampled at equal
times over the exposure and centred on their mean position:

* ``walk``: the random motion of Boracchi and Foi (IEEE TIP 2012, section on motion-blur PSFs): constant
  speed, a direction that drifts (tremor), is pulled back to the start (centripetal) and now and then
  reverses (impulsive shake), all scaled by one "anxiety"; the exposure sees a fraction of the path.
* ``smooth``: a Gaussian process with squared-exponential covariance in time, drawn by random Fourier
  features (Rahimi and Recht 2007): the slow sway of hands, speed varying along the path.
* ``line``: straight, uniformly accelerated: panning, or the first order of any short exposure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from data_synth.streams import Streams, to_normal
from deblur.errors import OptionError

FAMILIES = ("walk", "smooth", "line")
PARAMETERS = {
    "walk": ("anxiety", "tremor_rad", "centripetal", "exposure"),
    "smooth": ("length_scale", "flatness", "angle_rad"),
    "line": ("angle_rad", "acceleration"),
}
"""What the columns of Trajectories.parameters hold, by family; columns beyond are 0."""
STEPS = 256
"""Samples along a path, equal in time."""

# Ranges of the models' parameters; dimensionless unless a unit is in the name. The path has length 1 and
# lasts one time unit. They stand in for the per-step values of Boracchi and Foi, freed from the step count.
TREMOR_RAD = (0.5, 7.0)  # standard deviation of the heading after the whole path, at anxiety 1
CENTRIPETAL = (0.0, 40.0)  # pull per unit of distance; (2 pi)^2 closes a full circle
IMPULSES = (0.0, 3.0)  # expected reversals along the whole path, at anxiety 1
EXPOSURE = (0.35, 1.0)  # fraction of the path seen by the exposure
LENGTH_SCALE = (0.15, 1.2)  # of the Gaussian process, in exposures
FLATNESS = (0.1, 1.0)  # smaller over larger amplitude of the sway: hands rarely sway in circles
ACCELERATION = (-0.7, 0.7)  # change of speed over a line, relative to its mean speed
_FEATURES = 8
_MAX_IMPULSES = 4
_KNOTS = 64  # of a smooth path: linear between them, within 0.1% of its extent
_CHUNK = 4096  # rows at a time, bounds memory
_CACHED = 1024  # rows at a time that fit the processor's cache


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Unit-extent paths and what they were drawn from.

    Attributes:
        paths: (n, 2, STEPS) float32, x then y; larger side of the bounding box 1 (or 0 for a path that
            stands still), mean position 0.
        family: (n,) int64, index into FAMILIES.
        parameters: (n, 4) float32; see PARAMETERS.
    """

    paths: Tensor
    family: Tensor
    parameters: Tensor


def sample_trajectories(seeds: Tensor, mix: Sequence[float] = (0.4, 0.45, 0.15)) -> Trajectories:
    """Draws one unit-extent path per seed.

    Args:
        seeds: (n,) int64; a row depends on its own seed alone, not on the batch it came in.
        mix: Weights of walk, smooth and line; need not sum to 1.

    Returns:
        Trajectories on the seeds' device.

    Raises:
        OptionError: The mix is not three non-negative weights with a positive sum.
    """
    if len(mix) != len(FAMILIES) or min(mix) < 0 or sum(mix) <= 0:
        raise OptionError(f"mix: expected {len(FAMILIES)} weights >= 0 with a sum > 0 for {FAMILIES}, got {mix}")
    parts = [_sample_chunk(chunk, mix) for chunk in torch.split(seeds, _CHUNK)]
    if len(parts) == 1:
        return parts[0]
    return Trajectories(
        paths=torch.cat([p.paths for p in parts]),
        family=torch.cat([p.family for p in parts]),
        parameters=torch.cat([p.parameters for p in parts]),
    )


def _sample_chunk(seeds: Tensor, mix: Sequence[float]) -> Trajectories:
    edges = torch.tensor(mix, dtype=torch.float64).cumsum(0) / sum(mix)
    choice = Streams(seeds, purpose=1).uniform()
    family = torch.bucketize(choice, edges[:-1].float().to(seeds.device), right=True)
    paths = torch.empty(len(seeds), 2, STEPS, device=seeds.device)
    parameters = torch.zeros(len(seeds), 4, device=seeds.device)
    # A walk goes step by step and wants many rows a step; the others want rows that fit the cache.
    for index, (draw, at_once) in enumerate(((_walk, _CHUNK), (_smooth, _CACHED), (_line, _CACHED))):
        for rows in (family == index).nonzero(as_tuple=True)[0].split(at_once):
            if len(rows):
                paths[rows], parameters[rows] = draw(Streams(seeds[rows], purpose=2, ahead=2))
    return Trajectories(paths=paths, family=family, parameters=parameters)


def _unit_extent(paths: Tensor) -> Tensor:
    """Scales (2, T, n) paths to a bounding box whose larger side is 1, centres them: (n, 2, T)."""
    box = (paths.amax(1) - paths.amin(1)).amax(0)
    paths = paths.sub_(paths.mean(1, keepdim=True)).div_(box.clamp_min_(1e-6))
    return paths.permute(2, 0, 1).contiguous()


def _walk(streams: Streams) -> tuple[Tensor, Tensor]:
    anxiety, tremor = streams.uniform(), streams.between(TREMOR_RAD)
    pull, impulses = streams.between(CENTRIPETAL), streams.between(IMPULSES)
    exposure = streams.between(EXPOSURE)
    step = exposure / STEPS  # what the exposure does not see need not be walked
    recoil_x, recoil_y = _recoils(streams, anxiety * impulses * exposure)
    recall = anxiety * pull * step
    angle = 2.0 * math.pi * streams.uniform()
    heading_x, heading_y = angle.cos(), angle.sin()
    x, y = torch.zeros_like(angle), torch.zeros_like(angle)
    visited = torch.empty(2, STEPS, len(angle), device=angle.device)
    blocks = streams.increments(STEPS, anxiety * tremor * step.sqrt())
    turns = ((block[0, i], block[1, i]) for block in blocks for i in range(block.shape[1]))
    for t, (turn_x, turn_y) in enumerate(turns):
        back_x, back_y = recoil_x[t], recoil_y[t]  # complex factor on the heading, 1 where nothing happens
        kicked = (heading_x * back_x).addcmul_(heading_y, back_y, value=-1)
        heading_y = (heading_x * back_y).addcmul_(heading_y, back_x).add_(turn_y).addcmul_(recall, y, value=-1)
        heading_x = kicked.add_(turn_x).addcmul_(recall, x, value=-1)
        to_unit = (heading_x * heading_x).addcmul_(heading_y, heading_y).clamp_min_(1e-12).rsqrt_()
        heading_x.mul_(to_unit)
        heading_y.mul_(to_unit)
        x = torch.addcmul(x, heading_x, step, out=visited[0, t])
        y = torch.addcmul(y, heading_y, step, out=visited[1, t])
    return _unit_extent(visited), torch.stack([anxiety, tremor, pull, exposure], 1)


def _recoils(streams: Streams, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Impulsive shake: factors (STEPS, n) on the heading, real and imaginary, 1 but for a few reversals."""
    count = len(expected)
    happens = streams.uniform(_MAX_IMPULSES) < (expected / _MAX_IMPULSES)[:, None]
    when = (streams.uniform(_MAX_IMPULSES) * STEPS).long()
    swing = math.pi + (streams.uniform(_MAX_IMPULSES) - 0.5)  # a reversal, give or take half a radian
    real = torch.ones(count, STEPS, device=expected.device)
    imaginary = torch.zeros(count, STEPS, device=expected.device)
    # Added, not set: two impulses at one step add up the same in any order.
    real.scatter_add_(1, when, torch.where(happens, 2.0 * swing.cos(), 0.0))
    imaginary.scatter_add_(1, when, torch.where(happens, 2.0 * swing.sin(), 0.0))
    return real.T.contiguous(), imaginary.T.contiguous()


def _smooth(streams: Streams) -> tuple[Tensor, Tensor]:
    scale, flatness = streams.log_between(LENGTH_SCALE), streams.between(FLATNESS)
    angle = 2.0 * math.pi * streams.uniform()
    uniform = streams.uniform(5, 2, _FEATURES).unbind(1)
    frequency = to_normal(uniform[0], uniform[1]) / scale[:, None, None]  # rad per exposure
    phase = 2.0 * math.pi * uniform[2]
    weight = to_normal(uniform[3], uniform[4])
    times = torch.linspace(0, 1, _KNOTS, device=angle.device)
    sway = torch.zeros(len(angle), 2, _KNOTS, device=angle.device)
    for f, p, w in zip(frequency.unbind(2), phase.unbind(2), weight.unbind(2), strict=True):
        sway += (f[..., None] * times).add_(p[..., None]).cos_().mul_(w[..., None])
    sway = F.interpolate(sway, size=STEPS, mode="linear", align_corners=True)
    along, across = sway[:, 0], sway[:, 1] * flatness[:, None]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    path = torch.stack([cos * along - sin * across, sin * along + cos * across])
    return _unit_extent(path.transpose(1, 2)), torch.stack([scale, flatness, angle, torch.zeros_like(angle)], 1)


def _line(streams: Streams) -> tuple[Tensor, Tensor]:
    angle, acceleration = 2.0 * math.pi * streams.uniform(), streams.between(ACCELERATION)
    times = torch.linspace(0, 1, STEPS, device=angle.device)
    along = times + acceleration[:, None] * times * (times - 1.0)
    path = torch.stack([angle.cos()[:, None] * along, angle.sin()[:, None] * along])
    zero = torch.zeros_like(angle)
    return _unit_extent(path.transpose(1, 2)), torch.stack([angle, acceleration, zero, zero], 1)
