"""What JPEG leaves of a batch, a quality for every sample: the codec itself on the CPU, its twin elsewhere.

On the CPU libjpeg does the work, through OpenCV: a third of the cost of tensor arithmetic. On other devices
`simulate` keeps the batch where it is: ITU-T T.81 (1992) with the tables of its annex K, scaled by quality as
libjpeg does. Entropy coding is lossless and is left out. The two agree within half a level on the mean.
"""

import math

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA_CORNER = ((17, 18, 24, 47), (18, 21, 26, 66), (24, 26, 56, 99), (47, 66, 99, 99))
# ITU-T T.871 (JFIF): R'G'B' to Y'CbCr.
_TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


def _dct_matrix(device: torch.device) -> Tensor:
    k = torch.arange(8, dtype=torch.float32, device=device)
    matrix = torch.cos(math.pi * (2.0 * k + 1.0) * k[:, None] / 16.0) / 2.0
    matrix[0] /= math.sqrt(2.0)
    return matrix


def _tables(quality: Tensor) -> Tensor:
    """Quantisation tables (B, 2, 8, 8), luma then chroma, for libjpeg qualities (B,)."""
    chroma = torch.full((8, 8), 99.0, device=quality.device)
    chroma[:4, :4] = torch.tensor(_CHROMA_CORNER, device=quality.device)
    base = torch.stack([torch.tensor(_LUMA, dtype=torch.float32, device=quality.device), chroma])
    quality = quality.float().clamp(1.0, 100.0)
    percent = torch.where(quality < 50.0, torch.floor(5000.0 / quality), 200.0 - 2.0 * quality)
    return torch.floor((base * percent[:, None, None, None] + 50.0) / 100.0).clamp(1.0, 255.0)


def _quantise(plane: Tensor, table: Tensor) -> Tensor:
    """Plane (B, C, H, W) in -128..127, sides multiples of 8; table (B, 8, 8)."""
    batch, channels, height, width = plane.shape
    matrix = _dct_matrix(plane.device)
    both_axes = torch.kron(matrix, matrix)  # (64, 64): one product a block beats two of 8 x 8
    blocks = plane.view(batch, channels, height // 8, 8, width // 8, 8).transpose(3, 4).reshape(batch, -1, 64)
    steps = table.reshape(batch, 1, 64)
    coefficients = (blocks @ both_axes.T).div_(steps).round_().mul_(steps)
    blocks = (coefficients @ both_axes).view(batch, channels, height // 8, width // 8, 8, 8)
    return blocks.transpose(3, 4).reshape(plane.shape)


def jpeg(images: Tensor, quality: Tensor, subsample: bool = False) -> Tensor:
    """What each picture looks like after JPEG compression, by libjpeg on the CPU, by `simulate` elsewhere.

    Args:
        images: (B, 3, H, W) float32 in [0, 1], any H and W.
        quality: (B,) libjpeg quality, 1..100.
        subsample: Chroma at half resolution (4:2:0) rather than full (4:4:4).

    Returns:
        (B, 3, H, W) float32 in [0, 1], on 8-bit levels.
    """
    if images.device.type != "cpu":
        return simulate(images, quality, subsample)
    levels = images.clamp(0.0, 1.0).mul_(255.0).round_().byte().permute(0, 2, 3, 1).contiguous().numpy()
    for picture, percent in zip(levels, quality.tolist(), strict=True):
        picture[:] = _through_libjpeg(picture, int(percent), subsample)
    return torch.from_numpy(levels).permute(0, 3, 1, 2).float().div_(255.0).contiguous()


def jpeg_some(images: Tensor, quality: Tensor, subsample: Tensor) -> Tensor:
    """`jpeg` of the rows with a quality above 0, in place; subsample is (B,) bool."""
    for chroma_too in (False, True):
        rows = ((quality > 0) & (subsample == chroma_too)).nonzero(as_tuple=True)[0]
        if len(rows):
            images[rows] = jpeg(images[rows], quality[rows], chroma_too)
    return images


def compress_levels(levels: np.ndarray, quality: Tensor, subsample: Tensor) -> np.ndarray:
    """`jpeg_some` on the CPU, of pictures held as (B, H, W, 3) uint8 RGB, in place."""
    for picture, percent, chroma_too in zip(levels, quality.tolist(), subsample.tolist(), strict=True):
        if percent:
            picture[:] = _through_libjpeg(picture, percent, chroma_too)
    return levels


def _through_libjpeg(picture: np.ndarray, quality: int, subsample: bool) -> np.ndarray:
    factor = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420 if subsample else cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor]
    _, code = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)
    return cv2.cvtColor(np.asarray(cv2.imdecode(code, cv2.IMREAD_COLOR)), cv2.COLOR_BGR2RGB)


def simulate(images: Tensor, quality: Tensor, subsample: bool = False) -> Tensor:
    """JPEG as tensor arithmetic, batched, on any device.

    Args:
        images: (B, 3, H, W) float32 in [0, 1], any H and W.
        quality: (B,) libjpeg quality, 1..100.
        subsample: Chroma at half resolution (4:2:0) rather than full (4:4:4).

    Returns:
        (B, 3, H, W) float32 in [0, 1], on 8-bit levels.
    """
    height, width = images.shape[-2:]
    unit = 16 if subsample else 8
    levels = images.clamp(0.0, 1.0).mul_(255.0).round_()
    levels = F.pad(levels, (0, -width % unit, 0, -height % unit), mode="replicate")
    forward = torch.tensor(_TO_YCC, device=images.device)
    ycc = F.conv2d(levels, forward[:, :, None, None]).round_()
    luma, chroma = ycc[:, :1] - 128.0, ycc[:, 1:].contiguous()
    tables = _tables(quality)
    if subsample:
        chroma = F.avg_pool2d(chroma, 2)
    # A decoder holds whole levels between its steps; rounding them here keeps ours within a level of it.
    luma = _quantise(luma, tables[:, 0]).add_(128.0).round_().clamp_(0.0, 255.0)
    chroma = _quantise(chroma, tables[:, 1]).round_().clamp_(-128.0, 127.0)
    if subsample:
        # libjpeg's "fancy" upsampling: a triangle filter, which bilinear interpolation by 2 is.
        chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear", align_corners=False)
    back = torch.linalg.inv(torch.tensor(_TO_YCC, dtype=torch.float64)).float().to(images.device)
    rgb = F.conv2d(torch.cat([luma, chroma], 1), back[:, :, None, None])
    return rgb.round_().clamp_(0.0, 255.0).div_(255.0)[..., :height, :width]
