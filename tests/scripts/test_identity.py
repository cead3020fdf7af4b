"""The second recogniser's file, and the table of distances."""

import json
from argparse import Namespace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from deblur.errors import DataError, WeightsError
from scripts.faceres import SIDE_PX, FaceRes
from scripts.identity import cells, differences, tables


def write_faceres(folder: Path, width: int = 16) -> Path:
    """A network of that many channels in the form of the npm package."""
    draw = np.random.default_rng(0)
    tensors = {"conv1/convolution/merged_input": (3, 3, 3, width), "conv1_bn/batchnorm_1/sub": (width,)}
    for block in range(1, 14):
        tensors[f"conv_dw_{block}/depthwise_kernel"] = (3, 3, width, 1)
        tensors[f"conv_dw_{block}_bn/batchnorm_1/mul"] = (1, 1, width, 1)
        tensors[f"conv_pw_{block}/convolution/merged_input"] = (1, 1, width, width)
        for part in ("dw", "pw"):
            tensors[f"conv_{part}_{block}_bn/batchnorm_1/sub"] = (width,)
    values = {}
    for name, shape in tensors.items():
        if "depthwise" in name or name.endswith("mul"):  # a mean of nine pixels
            values[name] = np.full(shape, 1 / 9 if "depthwise" in name else 1, "<f2")
        else:
            deviation = 0.1 if name.endswith("sub") else (2 / np.prod(shape[:-1])) ** 0.5
            values[name] = (deviation * draw.normal(size=shape)).astype("<f2")
    entries = [
        {"name": name, "shape": shape, "dtype": "float32", "quantization": {"dtype": "float16"}}
        for name, shape in tensors.items()
    ]
    (folder / "faceres.json").write_text(json.dumps({"weightsManifest": [{"weights": entries}]}))
    (folder / "faceres.bin").write_bytes(b"".join(value.tobytes() for value in values.values()))
    return folder / "faceres.json"


def test_the_second_recogniser_gives_embeddings_of_unit_length(tmp_path: Path) -> None:
    network = FaceRes(write_faceres(tmp_path))
    assert sorted(set(network.strides)) == [1, 2]
    assert network.strides.count(2) == 5  # 224 px become 7
    embeddings = network(torch.stack([torch.zeros(3, SIDE_PX, SIDE_PX), torch.rand(3, SIDE_PX, SIDE_PX)]))
    assert embeddings.shape == (2, 16)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))
    assert not torch.allclose(embeddings[0], embeddings[1], atol=1e-4)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faceres.bin").write_bytes(b"")
    for content in ("{}", "[]", "no JSON", '{"weightsManifest": []}', '{"weightsManifest": [{"weights": [1]}]}'):
        (tmp_path / "faceres.json").write_text(content)
        with pytest.raises(WeightsError, match="vladmandic"):
            FaceRes(tmp_path / "faceres.json")
    write_faceres(tmp_path)
    (tmp_path / "faceres.bin").write_bytes(b"\0" * 100)
    with pytest.raises(WeightsError, match=r"and its \.bin"):
        FaceRes(tmp_path / "faceres.json")


def test_pairs_without_a_face_are_named(tmp_path: Path) -> None:
    for part in ("blurred", "sharp"):
        (tmp_path / part).mkdir()
        cv2.imwrite(str(tmp_path / part / "grey.png"), np.full((64, 64, 3), 90, np.uint8))
    with pytest.raises(DataError, match="none was found"):
        tables(tmp_path, {}, Namespace(weights=[], device="cpu", mode="auto"))


def test_cells_hold_means_and_who_is_nearest_by_extent() -> None:
    distances = np.array([[0.2, 0.5, 0.9], [0.1, 0.4, 0.9], [0.9, 0.9, 0.6]])
    everything, short, middle, long, large = cells(distances, np.array([5.0, 20.0, 30.0]))
    assert everything.startswith("0.400 [")
    assert everything.endswith(", 0.67")
    assert short == "0.200 [0.200, 0.200], 1.00"
    assert middle == "0.400 [0.400, 0.400], 0.00"  # nearest to another's
    assert long == "0.600 [0.600, 0.600], 1.00"
    assert large.startswith("0.500 [")
    assert large.endswith(", 0.50")


def test_a_band_without_pictures_stays_empty() -> None:
    assert differences(np.array([-0.1, -0.3]), np.array([5.0, 6.0])) == [
        "-0.200 [-0.300, -0.100]", "-0.200 [-0.300, -0.100]", "", "", "",
    ]  # fmt: skip
