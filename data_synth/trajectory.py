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
from torch import Tensor

from data_synth.streams import Streams
from deblur.errors import OptionError

FAMILIES = ("walk", "smooth", "line")
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
_FEATURES = 12
_CHUNK = 2048  # rows at a time, bounds the memory of large banks


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Unit-extent paths and what they were drawn from.

    Attributes:
        paths: (n, STEPS, 2) float32, x then y; larger side of the bounding box 1 (or 0 for a path that
            stands still), mean position 0.
        family: (n,) int64, index into FAMILIES.
        parameters: (n, 4) float32: for walk anxiety, tremor, centripetal pull, exposure; for smooth length
            scale, flatness, angle in radians, 0; for line angle, acceleration, 0, 0.
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
        raise OptionError(
            f"mix: expected {len(FAMILIES)} weights >= 0 with a sum > 0 for {FAMILIES}, got {mix}"
        )
    parts = [_sample_chunk(chunk, mix) for chunk in torch.split(seeds, _CHUNK)]
    return Trajectories(
        paths=torch.cat([p.paths for p in parts]),
        family=torch.cat([p.family for p in parts]),
        parameters=torch.cat([p.parameters for p in parts]),
    )


def _sample_chunk(seeds: Tensor, mix: Sequence[float]) -> Trajectories:
    edges = torch.tensor(mix, dtype=torch.float64).cumsum(0) / sum(mix)
    choice = Streams(seeds, purpose=1).uniform()
    family = torch.bucketize(choice, edges[:-1].float().to(seeds.device), right=True)
    paths = torch.zeros(len(seeds), STEPS, 2, device=seeds.device)
    parameters = torch.zeros(len(seeds), 4, device=seeds.device)
    for index, draw in enumerate((_walk, _smooth, _line)):
        rows = (family == index).nonzero(as_tuple=True)[0]
        if len(rows):
            path, drawn = draw(Streams(seeds[rows], purpose=2))
            paths[rows] = unit_extent(path)
            parameters[rows] = drawn
    return Trajectories(paths=paths, family=family, parameters=parameters)


def unit_extent(paths: Tensor) -> Tensor:
    """Scales (n, T, 2) paths to a bounding box whose larger side is 1, and centres them on their mean."""
    box = (paths.amax(1) - paths.amin(1)).amax(1)
    paths = paths / box.clamp_min(1e-6)[:, None, None]
    return paths - paths.mean(1, keepdim=True)


def _walk(streams: Streams) -> tuple[Tensor, Tensor]:
    anxiety, tremor = streams.uniform(), streams.between(TREMOR_RAD)
    pull, impulses = streams.between(CENTRIPETAL), streams.between(IMPULSES)
    exposure = streams.between(EXPOSURE)
    step = 1.0 / STEPS
    angle = 2.0 * math.pi * streams.uniform()
    heading = torch.stack([torch.cos(angle), torch.sin(angle)], 1)  # (n, 2), unit vectors
    turns = streams.normal(STEPS, 2) * (anxiety * tremor * math.sqrt(step))[:, None, None]
    reverses = streams.uniform(STEPS) < (anxiety * impulses * step)[:, None]
    swing = math.pi + (streams.uniform(STEPS) - 0.5)  # a reversal, give or take half a radian
    recoil = torch.where(reverses[..., None], torch.stack([swing.cos(), swing.sin()], -1), 0.0)
    recall = (anxiety * pull * step)[:, None]
    position = torch.zeros_like(heading)
    visited = []
    for turn, back in zip(turns.unbind(1), recoil.unbind(1), strict=True):
        kick = torch.stack(
            [
                heading[:, 0] * back[:, 0] - heading[:, 1] * back[:, 1],
                heading[:, 1] * back[:, 0] + heading[:, 0] * back[:, 1],
            ],
            1,
        )
        heading = heading + turn - recall * position + 2.0 * kick
        heading = heading / heading.norm(dim=1, keepdim=True).clamp_min(1e-6)
        position = position + heading * step
        visited.append(position)
    return _expose(torch.stack(visited, 1), exposure), torch.stack([anxiety, tremor, pull, exposure], 1)


def _expose(paths: Tensor, fraction: Tensor) -> Tensor:
    """Resamples the first `fraction` (n,) of each (n, T, 2) path to the full number of samples."""
    steps = paths.shape[1]
    times = torch.linspace(0, steps - 1, steps, device=paths.device) * fraction[:, None]
    before = times.floor().long().clamp_max(steps - 2)
    share = (times - before)[..., None]
    index = before[..., None].expand(-1, -1, 2)
    return paths.gather(1, index) * (1.0 - share) + paths.gather(1, index + 1) * share


def _smooth(streams: Streams) -> tuple[Tensor, Tensor]:
    scale, flatness = streams.log_between(LENGTH_SCALE), streams.between(FLATNESS)
    angle = 2.0 * math.pi * streams.uniform()
    frequency = streams.normal(2, _FEATURES, 1) / scale[:, None, None, None]  # rad per exposure
    phase = 2.0 * math.pi * streams.uniform(2, _FEATURES, 1)
    weight = streams.normal(2, _FEATURES, 1)
    times = torch.linspace(0, 1, STEPS, device=angle.device)
    sway = (weight * torch.cos(frequency * times + phase)).sum(2)  # (n, 2, T)
    along, across = sway[:, 0], sway[:, 1] * flatness[:, None]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    path = torch.stack([cos * along - sin * across, sin * along + cos * across], -1)
    return path, torch.stack([scale, flatness, angle, torch.zeros_like(angle)], 1)


def _line(streams: Streams) -> tuple[Tensor, Tensor]:
    angle, acceleration = 2.0 * math.pi * streams.uniform(), streams.between(ACCELERATION)
    times = torch.linspace(0, 1, STEPS, device=angle.device)
    along = times + acceleration[:, None] * times * (times - 1.0)
    path = torch.stack([angle.cos()[:, None] * along, angle.sin()[:, None] * along], -1)
    zero = torch.zeros_like(angle)
    return path, torch.stack([angle, acceleration, zero, zero], 1)
