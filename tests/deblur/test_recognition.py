"""The recogniser's file, its function, and faces put upright."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from deblur.errors import OptionError, WeightsError
from deblur.faces import FaceDetector
from deblur.images import decode
from deblur.recognition import CHIP_PX, PACKAGE, UPRIGHT, load_recogniser, upright_faces
from tests.deblur.recogniser_file import write_recogniser

SAMPLES = Path(__file__).parents[2] / "samples" / "sharp"


def test_a_file_is_read_as_dlib_computes_it(tmp_path: Path) -> None:
    written = write_recogniser(tmp_path / "net.dat")
    network = load_recogniser(tmp_path / "net.dat")
    torch.manual_seed(0)
    upright = torch.rand(2, 3, CHIP_PX, CHIP_PX)
    x = _convolve(written, "stem", upright * 255 / 256 - network.mean / 256, stride=2)
    x = F.max_pool2d(F.relu(x), 3, 2)
    y = _convolve(written, "blocks.0.second", F.relu(_convolve(written, "blocks.0.first", x, 1, 1)), 1, 1)
    torch.testing.assert_close(network.blocks[0](x), F.relu(x + y), rtol=1e-4, atol=1e-4)
    features = network.blocks(x).mean(dim=(2, 3))
    torch.testing.assert_close(network(upright), features @ written["head"], rtol=1e-4, atol=1e-4)


def _convolve(written: dict[str, Tensor], name: str, x: Tensor, stride: int, padding: int = 0) -> Tensor:
    x = F.conv2d(x, written[f"{name}.kernel"], written[f"{name}.bias"], stride, padding)
    return x * written[f"{name}.gain"].view(-1, 1, 1) + written[f"{name}.shift"].view(-1, 1, 1)


def test_blocks_of_different_size_add_up_to_the_larger(tmp_path: Path) -> None:
    write_recogniser(tmp_path / "net.dat")
    block = load_recogniser(tmp_path / "net.dat").blocks[10]  # 8 px come in: the convolutions give 3, the pooling 4
    x = torch.rand(1, 128, 8, 8)
    found = block(x)
    assert found.shape == (1, 256, 4, 4)
    torch.testing.assert_close(found[:, :128, 3], F.avg_pool2d(x, 2)[:, :, 3])  # the convolutions have nothing to add


def test_what_is_not_such_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"absent\.dat: expected dlib's file"):
        load_recogniser(tmp_path / "absent.dat")
    (tmp_path / "other.dat").write_bytes(b"\x01\x02" * 1000)
    with pytest.raises(WeightsError, match="there is no tensor"):
        load_recogniser(tmp_path / "other.dat")
    write_recogniser(tmp_path / "short.dat")
    whole = (tmp_path / "short.dat").read_bytes()
    (tmp_path / "short.dat").write_bytes(whole[: len(whole) - 1000])
    with pytest.raises(WeightsError, match="there is no tensor"):
        load_recogniser(tmp_path / "short.dat")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deblur.recognition.find_spec", lambda _: None)
    with pytest.raises(WeightsError, match=f"pip install {PACKAGE}"):
        load_recogniser()


@pytest.mark.parametrize("angle", [0.0, 0.7, -2.0])
def test_landmarks_land_where_the_recogniser_wants_them(angle: float) -> None:
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    landmarks = (np.array(UPRIGHT) - 0.5) @ turn.T * 90 + (70, 60)
    y, x = torch.meshgrid(torch.arange(120.0), torch.arange(140.0), indexing="ij")
    spots = [torch.exp(-((x - u) ** 2 + (y - v) ** 2) / 18) for u, v in landmarks[:3]]
    upright = upright_faces(torch.stack(spots)[None], torch.tensor(landmarks, dtype=torch.float32)[None])
    for spot, (u, v) in zip(upright[0], UPRIGHT[:3], strict=True):
        peak = divmod(int(spot.argmax()), CHIP_PX)
        assert (peak[1] + 0.5, peak[0] + 0.5) == pytest.approx((u * CHIP_PX, v * CHIP_PX), abs=1.1)


def test_large_faces_are_averaged_and_gradients_flow() -> None:
    board = (torch.arange(600)[:, None] + torch.arange(600)).remainder(2).float().expand(1, 3, 600, 600)
    picture = board.clone().requires_grad_(True)
    upright = upright_faces(picture, torch.tensor(UPRIGHT)[None] * 600)
    assert upright.detach().std() < 0.05  # taken pixel by pixel, a chequerboard gives stripes
    upright.sum().backward()
    assert picture.grad is not None
    assert (picture.grad > 0).float().mean() > 0.95


def test_landmarks_of_another_shape_are_refused() -> None:
    with pytest.raises(OptionError, match=r"\(B, 5, 2\)"):
        upright_faces(torch.zeros(2, 3, 8, 8), torch.zeros(1, 5, 2))


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_the_packaged_weights_tell_people_apart() -> None:
    recogniser = load_recogniser()
    embeddings = []
    for name in ("astronaut.jpg", "hopper.jpg"):
        levels = decode(SAMPLES / name).levels
        face = FaceDetector().detect(levels)[0]
        picture = torch.from_numpy(levels.copy()).permute(2, 0, 1)[None].float() / 255
        landmarks = torch.tensor(face.landmarks)
        mirrored = landmarks[[1, 0, 2, 4, 3]] * torch.tensor([-1.0, 1.0]) + torch.tensor([picture.shape[3] - 1.0, 0.0])
        for one, places in ((picture, landmarks), (picture.flip(3), mirrored)):
            embeddings.append(recogniser(upright_faces(one, places[None]))[0])
    distances = torch.cdist(torch.stack(embeddings), torch.stack(embeddings))
    assert max(distances[0, 1], distances[2, 3]) < 0.4 < 0.6 < distances[:2, 2:].min()
