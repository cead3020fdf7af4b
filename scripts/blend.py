"""Weights between two that one run led to from the other: `python -m scripts.blend A B SHARE_OF_B OUT.safetensors`.

Wang et al. 2018 (ESRGAN, section 3.4): between pixel-loss weights and what adversarial tuning made of them lies every
trade of fidelity for sharpness, without the artefacts that a mean of two pictures has.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from deblur.errors import DeblurError, OptionError
from deblur.weights import load_weights, save_weights


def blend(first: str, second: str, share: float, out: Path) -> str:
    """Writes (1 - share) of the first and share of the second; returns the sha256.

    Raises:
        OptionError: the share is not in 0..1, or the weights are of different generators.
    """
    a, b = load_weights(first), load_weights(second)
    if not 0 <= share <= 1:
        raise OptionError(f"share: expected 0..1, got {share}")
    if a.metadata["generator"] != b.metadata["generator"]:
        raise OptionError(
            f"expected weights of one generator, got {a.metadata['generator']} and {b.metadata['generator']}"
        )
    theirs = b.generator.state_dict()
    with torch.no_grad():
        for name, value in a.generator.state_dict().items():
            theirs[name].lerp_(value, 1 - share)
    notes = {key: value for key, value in b.metadata.items() if key not in ("format", "generator")}
    return save_weights(b.generator, out, notes | {"blend": f"{share:g} with {1 - share:g} of {a.sha256}"})


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(f"usage: python -m scripts.blend A B SHARE_OF_B OUT; {__doc__}")
    try:
        print(blend(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])))
    except (DeblurError, ValueError) as error:
        sys.exit(str(error))
