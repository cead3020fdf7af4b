import csv
import sys

import numpy as np
import pytest
from PIL import Image
from skimage.data import astronaut

from benchmarks import blur_estimate, detect, paper_claim
from deblur.errors import DataError
from deblur.generator import GeneratorConfig, build
from deblur.weights import save_weights


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "fresh.safetensors"
    save_weights(build(GeneratorConfig(widths=(4,), down=(1,), up=())), path, {})
    return path


@pytest.fixture
def celeba(tmp_path):
    """Four pictures in torchvision's layout, three of them in the test split."""
    root = tmp_path / "celeba"
    (root / "img_align_celeba").mkdir(parents=True)
    for index in range(4):
        picture = np.roll(astronaut()[30:230, 140:304], 2 * index, axis=1)
        Image.fromarray(picture).save(root / "img_align_celeba" / f"{index:06}.jpg", quality=95)
    (root / "list_eval_partition.txt").write_text("000000.jpg 2\n000001.jpg 0\n000002.jpg 2\n000003.jpg 2\n")
    return root


def test_the_claim_is_measured_on_the_test_split_alone(celeba, weights, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    options = ["--celeba", celeba, "--weights", weights, "--device", "cpu", "--steps-each", 3, "-o", out]
    monkeypatch.setattr(sys, "argv", ["paper_claim", *map(str, options)])
    paper_claim.main()
    with (out / "pairs" / "pairs.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["source"] for row in rows} == {"000000.jpg", "000002.jpg", "000003.jpg"}
    assert [int(row["extent_px_at_128"]) for row in rows] == [0, 5, 9, 13, 17, 21, 25, 29, 37]
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    assert [line[1].strip() for line in lines] == ["extent", "all", "25+", *map(str, paper_claim.LADDER_PX[:9])]
    assert lines[1][2].strip() == "9"
    assert (out / "report" / "index.html").is_file()


def test_the_same_seed_blurs_alike_and_another_one_does_not(celeba, tmp_path):
    files = paper_claim.test_pictures(celeba)[:1]
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        paper_claim.make_pairs(files, tmp_path / name, "default", 2, seed)
    a, b, c = ((tmp_path / name / "blurred" / "000000_1.png").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_a_root_without_celeba_is_named(tmp_path):
    with pytest.raises(DataError, match=r"list_eval_partition\.txt"):
        paper_claim.test_pictures(tmp_path)


def test_the_detection_benchmark_prints_its_ratios_last(weights, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["detect", "--smoke", "--threads", "1", "--weights", str(weights)])
    detect.main()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("ratios: share 1 face 0.")
    assert "stock/ours" in last


def test_the_estimator_is_trained_and_validated_by_one_script(celeba, tmp_path, monkeypatch, capsys):
    out = tmp_path / "estimator.safetensors"
    options = ["train", "--faces", celeba, "--views", 48, "--steps", 2, "-o", out]
    monkeypatch.setattr(sys, "argv", ["blur_estimate", *map(str, options)])
    blur_estimate.main()
    assert out.stat().st_size < 200_000
    paper_claim.make_pairs(paper_claim.test_pictures(celeba), tmp_path / "pairs", "default", 1, 0)
    monkeypatch.setattr(sys, "argv", ["blur_estimate", "validate", "--pairs", str(tmp_path / "pairs")])
    blur_estimate.main()
    assert "3 pairs, mean absolute error" in capsys.readouterr().out
