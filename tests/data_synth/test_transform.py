import os
import pickle

import numpy as np
import pytest
import torch

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would ask the network for a newer version
A = pytest.importorskip("albumentations")

import data_synth  # noqa: E402
from data_synth import Degrade, RandomTrajectoryBlur  # noqa: E402

ARGUMENTS = {
    "extent_px": (6.0, 14.0),
    "mix": (0.2, 0.5, 0.3),
    "rotation_share": 0.5,
    "linear_light": True,
    "saturation_share": 0.6,
    "noise_share": 1.0,
    "noise_sigma": (0.01, 0.02),
    "jpeg_share": 0.5,
    "jpeg_quality": (50, 80),
}


def face(seed: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return np.kron(coarse, np.ones((8, 8, 1), dtype=np.uint8))


@pytest.mark.parametrize("plain", [True, False])
def test_the_transform_and_the_module_give_the_same_pixels(plain):
    arguments = {"extent_px": (6.0, 14.0), "linear_light": False} if plain else ARGUMENTS
    transform = RandomTrajectoryBlur(**arguments, p=1.0)
    degrade = Degrade(transform.config())
    for seed in range(12):
        picture = face(seed)
        shown = transform.apply(picture, sample_seed=seed * 1000 + 7)
        sharp = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255
        exact, _ = degrade(sharp, seeds=torch.tensor([seed * 1000 + 7]))
        expected = exact[0].permute(1, 2, 0).numpy()
        assert np.abs(shown.astype(float) - expected * 255).max() <= 0.5 + 1e-3
        floats = transform.apply(picture.astype(np.float32) / 255, sample_seed=seed * 1000 + 7)
        assert floats.dtype == np.float32
        np.testing.assert_allclose(floats, expected, atol=1e-5)


def test_compose_seeds_it():
    def draw(seed: int) -> list[np.ndarray]:
        pipeline = A.Compose([A.HorizontalFlip(p=0.5), RandomTrajectoryBlur(p=1.0, **ARGUMENTS)], seed=seed)
        return [pipeline(image=face())["image"] for _ in range(4)]

    first, again, other = draw(1), draw(1), draw(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[1])
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("shape", [(40, 56), (40, 56, 1), (40, 56, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_shape_and_dtype_come_back(shape, dtype):
    image = (np.random.default_rng(0).random(shape) * (255 if dtype == np.uint8 else 1)).astype(dtype)
    copy = image.copy()
    shown = A.Compose([RandomTrajectoryBlur(p=1.0)], seed=0)(image=image)["image"]
    assert shown.shape == shape
    assert shown.dtype == dtype
    assert shown.std() < image.std()
    assert np.array_equal(image, copy)


def test_boxes_and_masks_stay():
    pipeline = A.Compose(
        [A.HorizontalFlip(p=0.0), RandomTrajectoryBlur(p=1.0)],
        bbox_params=A.BboxParams(format="pascal_voc", label_fields=["labels"]),
        seed=0,
    )
    mask = np.arange(48 * 64, dtype=np.int32).reshape(48, 64) % 7
    shown = pipeline(image=face(), mask=mask, bboxes=[[3, 4, 20, 30]], labels=[1])
    assert np.array_equal(shown["mask"], mask)
    np.testing.assert_allclose(shown["bboxes"], [[3, 4, 20, 30]], atol=1e-3)


@pytest.mark.parametrize(
    "values",
    [
        {"extent_px": (9.0, 3.0)},
        {"extent_px": (-1.0, 3.0)},
        {"jpeg_quality": (0, 50)},
        {"jpeg_quality": (90, 50)},
        {"noise_share": 1.5},
        {"rotation_share": -0.1},
        {"noise_sigma": (0.0, 0.1)},
        {"mix": (0.0, 0.0, 0.0)},
        {"p": 2.0},
    ],
)
def test_arguments_out_of_range_are_refused(values):
    with pytest.raises(ValueError):
        RandomTrajectoryBlur(**values)


def test_it_is_saved_and_loaded_with_its_pipeline():
    pipeline = A.Compose([RandomTrajectoryBlur(p=1.0, **ARGUMENTS)], seed=4)
    loaded = A.from_dict(A.to_dict(pipeline))
    restored = loaded.transforms[0]
    assert isinstance(restored, RandomTrajectoryBlur)
    assert restored.config() == pipeline.transforms[0].config()
    assert pickle.loads(pickle.dumps(pipeline)).transforms[0].config() == restored.config()


def test_images_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="channels"):
        RandomTrajectoryBlur(p=1.0).apply(np.zeros((8, 8, 5), dtype=np.uint8), sample_seed=1)


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = data_synth.nothing_here
