import argparse
import csv
import json
import math
import re
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from skimage.data import astronaut
from skimage.metrics import peak_signal_noise_ratio

from deblur.errors import DataError, OptionError, WeightsError
from deblur.evaluation import EvaluationConfig, add_arguments, evaluate, run
from deblur.evaluation.pairs import find_pairs, read_manifest
from deblur.evaluation.tables import _common_landmarks, extent_error, rank_correlation
from deblur.faces import Face
from deblur.generator import GeneratorConfig, build
from deblur.metrics import LpipsNetwork, judge_detection
from deblur.weights import save_weights

NAMES = ("a.png", "sub/a.png", "ü ö.png", "gone.png")
EXTENTS = (0, 9, 9, 41)


def write(path, levels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(levels).save(path)


def blurred_by(levels, extent):
    return levels if extent == 0 else cv2.blur(levels, (extent, max(1, extent // 3)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Four pairs: untouched, made better, made worse, and one whose face is lost and not regained."""
    root = tmp_path_factory.mktemp("pairs")
    face = np.ascontiguousarray(astronaut()[20:220, 130:320])
    rows = []
    for index, (name, extent) in enumerate(zip(NAMES, EXTENTS, strict=True)):
        sharp = np.roll(face, 3 * index, axis=1)
        blurred = blurred_by(sharp, extent)
        restored = {
            "a.png": blurred,
            "sub/a.png": (blurred.astype(int) + sharp).astype(np.uint16) // 2,
            "ü ö.png": blurred_by(blurred, 5),
            "gone.png": blurred,
        }[name].astype(np.uint8)
        for kind, levels in (("sharp", sharp), ("blurred", blurred), ("restored", restored)):
            write(root / kind / name, levels)
        rows.append({"file": name, "extent_px_at_128": extent, "family": "box"})
    with (root / "pairs.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return root


def config(root, **changes):
    values = {"blurred": root / "blurred", "restored": root / "restored", "sharp": root / "sharp", "resamples": 100}
    return EvaluationConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def report(folders):
    return evaluate(config(folders))


def test_every_picture_is_measured_once_and_by_its_relative_path(report):
    assert [record.pair.name for record in report.records] == sorted(NAMES)
    assert report.problems == []
    assert report.group("all").pictures == 4


def test_psnr_and_gain_are_means_over_pictures(report, folders):
    expected = {"blurred": [], "restored": []}
    for name in NAMES:
        sharp = np.asarray(Image.open(folders / "sharp" / name))
        for side, values in expected.items():
            other = np.asarray(Image.open(folders / side / name))
            equal = np.array_equal(sharp, other)
            values.append(100.0 if equal else peak_signal_noise_ratio(sharp, other, data_range=255))
    figures = report.group("all").figures["psnr"]
    assert figures["blurred"].value == pytest.approx(np.mean(expected["blurred"]), abs=1e-4)
    assert figures["restored"].value == pytest.approx(np.mean(expected["restored"]), abs=1e-4)
    gain = np.mean(expected["restored"]) - np.mean(expected["blurred"])
    assert figures["gain"].value == pytest.approx(gain, abs=1e-4)
    assert figures["gain"].low <= figures["gain"].value <= figures["gain"].high


def test_a_lost_face_counts_as_missed_with_confidence_zero(report):
    lost = report.group("41")
    assert lost.faces == 1
    for side in ("blurred", "restored"):
        assert lost.figures["detection_rate"][side].value == 0.0
        assert lost.figures["confidence"][side].value == 0.0
        assert math.isnan(lost.figures["landmark_error"][side].value)
    assert lost.figures["detection_rate"]["sharp"].value == 1.0
    everything = report.group("all").figures
    assert everything["detection_rate"]["blurred"].value == pytest.approx(0.75)
    assert everything["confidence"]["blurred"].value < 0.76


def test_landmarks_are_compared_on_the_faces_found_both_before_and_after(report):
    figures = report.group("all").figures["landmark_error_common"]
    assert figures["gain"].value == pytest.approx(figures["restored"].value - figures["blurred"].value)
    assert report.group("0").figures["landmark_error_common"]["gain"].value == 0.0
    assert math.isnan(report.group("41").figures["landmark_error_common"]["restored"].value)


def test_a_face_found_anew_does_not_enter_the_comparison_of_landmarks():
    marks = ((10.0, 10.0), (20.0, 10.0), (15.0, 15.0), (11.0, 20.0), (19.0, 20.0))
    one, two = Face((0, 0, 30, 30), 0.99, marks), Face((50, 0, 80, 30), 0.99, tuple((x + 50, y) for x, y in marks))
    moved = Face(two.box, 0.95, tuple((x + 1, y) for x, y in two.landmarks))
    before, after = judge_detection([moved], [one, two]), judge_detection([one, two], [one, two])
    common = _common_landmarks([before], [after])
    assert common["blurred"] == ([pytest.approx(0.1)], [1.0])
    assert common["restored"] == ([0.0], [1.0])


def test_only_the_picture_made_worse_is_called_so(report):
    assert report.group("all").figures["made_worse"]["restored"].value == 0.25
    assert report.group("0").figures["made_worse"]["restored"].value == 0.0
    assert report.group("9").figures["made_worse"]["restored"].value == 0.5


def test_groups_are_everything_then_bands_then_single_extents(report):
    assert [(one.kind, one.name, one.pictures) for one in report.groups] == [
        ("all", "all", 4),
        ("band", "0", 1),
        ("band", "9-17", 2),
        ("band", "25+", 1),
        ("extent", "0", 1),
        ("extent", "9", 2),
        ("extent", "41", 1),
    ]


def test_the_threshold_curve_falls_and_meets_the_table_at_the_frozen_threshold(report):
    rates = [point["restored_rate"] for point in report.curve]
    assert rates == sorted(rates, reverse=True)
    (frozen,) = [point for point in report.curve if point["threshold"] == 0.9]
    for side in ("sharp", "blurred", "restored"):
        assert frozen[f"{side}_rate"] == report.group("all").figures["detection_rate"][side].value


def test_networks_that_are_not_at_hand_are_called_absent(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    found = evaluate(config(folders))
    assert set(found.absent) == {"lpips", "identity"}
    assert "lpips" not in found.group("all").figures
    assert "--identity-weights" in found.summary()


def test_lpips_is_measured_where_a_backbone_is_named(folders, tmp_path):
    torch.manual_seed(0)
    state = {k: v for k, v in LpipsNetwork().state_dict().items() if k.startswith("features.")}
    save_file(state, tmp_path / "alexnet.safetensors")
    found = evaluate(config(folders, lpips_backbone=str(tmp_path / "alexnet.safetensors")))
    figures = found.group("0").figures["lpips"]
    assert figures["restored"].value == 0.0
    assert found.group("41").figures["lpips"]["blurred"].value > 0.0
    with pytest.raises(WeightsError):
        evaluate(config(folders, lpips_backbone=str(tmp_path / "absent.safetensors")))


def test_without_sharp_pictures_the_report_calls_itself_unreferenced(folders, tmp_path):
    found = evaluate(config(folders, sharp=None))
    assert not found.referenced
    assert "psnr" not in found.group("all").figures
    assert "detection_rate" not in found.group("all").figures
    assert found.group("0").figures["box_agreement"]["restored"].value == 1.0
    assert found.group("all").figures["pictures_with_face"]["blurred"].value == 0.75
    found.write(tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "unreferenced" in text
    assert json.loads((tmp_path / "report" / "report.json").read_text())["protocol"] == "unreferenced"


def test_pictures_are_restored_on_the_way_where_weights_are_named(folders, tmp_path):
    generator = build(GeneratorConfig(widths=(4,), down=(1,), up=()))
    save_weights(generator, tmp_path / "fresh.safetensors", {})
    weights = config(folders, restored=None, weights=str(tmp_path / "fresh.safetensors"), device="cpu")
    found = evaluate(weights, restored_folder=tmp_path / "restored")
    assert (tmp_path / "restored" / "sub" / "a.png").is_file()
    # A fresh generator is the identity, so nothing is gained and nothing is lost beyond rounding.
    assert found.group("all").figures["psnr"]["gain"].value == pytest.approx(0.0, abs=0.01)
    assert len(found.about["weights_sha256"]) == 64
    assert found.about["faces_left_alone"] == {"sharp": 1}
    with pytest.raises(OptionError, match="folder"):
        evaluate(weights)


def test_faces_in_pictures_without_a_face_are_counted_as_hallucinated(folders, tmp_path):
    face = np.asarray(Image.open(folders / "sharp" / "a.png"))
    for name, restored in (("one.png", face), ("two.png", np.full_like(face, 90))):
        write(tmp_path / "blurred" / name, np.full_like(face, 90))
        write(tmp_path / "restored" / name, restored)
    found = evaluate(
        config(folders, negatives=tmp_path / "blurred", negatives_restored=tmp_path / "restored")
    ).negatives
    assert found is not None
    assert (found.pictures, found.blurred, found.restored) == (2, 0.0, 0.5)
    assert found.hallucinated == ("one.png",)


def test_the_estimate_is_compared_with_the_known_extents(report):
    assert report.extent_error["pictures"] == 4
    assert report.extent_error["rank_correlation"] > 0.5
    estimates = [record.estimated_extent_px for record in report.records]
    known = [extent * 200 / 128 for extent in report.extents]
    assert report.extent_error == extent_error(known, estimates)


def test_without_a_manifest_the_extents_are_estimates_and_called_so(folders, tmp_path):
    for kind in ("blurred", "restored", "sharp"):
        write(tmp_path / kind / "x.png", np.asarray(Image.open(folders / kind / "sub/a.png")))
    found = evaluate(config(tmp_path))
    assert "estimated" in found.about["extent_unit"]
    assert found.extents == [round(found.records[0].estimated_extent_px, 2)]
    assert found.extent_error == {}


def test_the_written_report_is_complete_and_self_contained(report, tmp_path):
    report.write(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert content["protocol"] == "referenced"
    assert len(content["pictures"]) == 4
    with (tmp_path / "pictures.csv").open(encoding="utf-8", newline="") as stream:
        rows = {row["file"]: row for row in csv.DictReader(stream)}
    assert rows["ü ö.png"]["family"] == "box"
    assert float(rows["gone.png"]["blurred_hits"]) == 0
    assert rows["gone.png"]["blurred_landmark_error"] == ""
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    sources = re.findall(r"(?:src|href)='([^']*)'", page)
    assert len(sources) > 4 + 12
    assert all(source.startswith("data:image/") for source in sources)
    assert "http" not in page
    for name in ("psnr_by_extent.png", "detection_rate_by_threshold.png", "detection_rate_by_extent.png"):
        with Image.open(tmp_path / name) as plot:
            assert plot.width > 400


def test_the_page_escapes_what_it_did_not_write(folders, tmp_path):
    name = "<script>alert(1)</script>.png".replace("/", "_")
    for kind in ("blurred", "restored"):
        write(tmp_path / kind / name, np.asarray(Image.open(folders / kind / "a.png")))
    found = evaluate(config(tmp_path, sharp=None))
    found.write(tmp_path / "report")
    assert "<script>" not in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_another_suffix_pairs_and_a_missing_picture_is_reported(folders, tmp_path):
    for name in NAMES[:2]:
        write((tmp_path / "restored" / name).with_suffix(".webp"), np.asarray(Image.open(folders / "blurred" / name)))
    pairs, problems = find_pairs(folders / "blurred", tmp_path / "restored", folders / "sharp")
    assert [pair.name for pair in pairs] == ["a.png", "sub/a.png"]
    assert pairs[0].restored == tmp_path / "restored" / "a.webp"
    assert len(problems) == 2
    assert "gone.png: no restored" in problems[0]


def test_folders_without_pictures_or_pairs_are_named(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        find_pairs(tmp_path / "empty", None, None)
    with pytest.raises(DataError, match="counterpart"):
        find_pairs(folders / "blurred", tmp_path / "empty", None)
    with pytest.raises(DataError, match="absent"):
        find_pairs(tmp_path / "absent", None, None)


def test_pictures_of_different_sizes_are_refused_by_name(folders, tmp_path):
    for kind in ("blurred", "restored"):
        write(tmp_path / kind / "x.png", np.zeros((20 if kind == "blurred" else 21, 30, 3), np.uint8))
    with pytest.raises(DataError, match=r"x\.png.*30 x 20.*30 x 21"):
        evaluate(config(tmp_path, sharp=None))


def test_tiny_pictures_are_measured_by_what_fits(tmp_path):
    rng = np.random.default_rng(0)
    for kind in ("blurred", "restored", "sharp"):
        write(tmp_path / kind / "x.png", rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    figures = evaluate(config(tmp_path)).group("all").figures
    assert figures["psnr"]["restored"].value > 0
    assert "ssim" not in figures
    assert math.isnan(figures["detection_rate"]["restored"].value)


def test_json_lines_and_csv_manifests_are_read_alike(tmp_path):
    lines = tmp_path / "manifest.jsonl"
    lines.write_text('{"blurred": "blurred/x/1.png", "extent_px": 12.5, "seed": 3}\n\n{"blurred": "2.png"}\n')
    known = read_manifest(lines)
    assert known["x/1.png"] == known["blurred/x/1.png"]
    assert (known["x/1.png"].extent, known["x/1.png"].unit) == (12.5, "extent_px")
    assert known["x/1.png"].notes == {"seed": 3}
    assert "2.png" not in known
    table = tmp_path / "pairs.csv"
    table.write_text("file,extent_px_at_128\n1.png,7\n")
    assert read_manifest(table)["1.png"].extent == 7
    for text in ("file,other\n1.png,7\n", "file,extent_px\n1.png,long\n", "file,extent_px\n1.png,-1\n"):
        table.write_text(text)
        with pytest.raises(DataError, match=r"pairs\.csv"):
            read_manifest(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"restored": None},
        {"weights": "default"},
        {"negatives": "somewhere"},
        {"threshold": 0.2},
        {"strips": -1},
    ],
)
def test_options_that_do_not_fit_are_refused(folders, changes):
    with pytest.raises(OptionError):
        config(folders, **changes)


def test_rank_correlation_shares_the_ranks_of_ties():
    a, b = np.array([1.0, 2.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0, 5.0])
    assert rank_correlation(a, b) == pytest.approx(0.9486833)
    assert rank_correlation(a, -b) == pytest.approx(-0.9486833)
    assert math.isnan(rank_correlation(a, np.ones(4)))


def test_the_command_writes_the_report_and_tells_what_is_missing(folders, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = ["--blurred", str(folders / "blurred"), "--sharp", str(folders / "sharp"), "-o", str(tmp_path / "out")]
    assert run(parser.parse_args([*options, "--restored", str(folders / "restored")])) == 0
    assert "detection_rate" in capsys.readouterr().out
    assert (tmp_path / "out" / "index.html").is_file()
    write(tmp_path / "few" / "a.png", np.asarray(Image.open(folders / "restored" / "a.png")))
    assert run(parser.parse_args([*options, "--restored", str(tmp_path / "few")])) == 1
    assert "gone.png" in capsys.readouterr().err


def test_declaring_the_options_does_not_import_torch():
    code = (
        "import sys, argparse, deblur.evaluation as e; e.add_arguments(argparse.ArgumentParser()); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
