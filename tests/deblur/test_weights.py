import json

import pytest
import torch
from safetensors.torch import save

from deblur import weights as module
from deblur.errors import OptionError, WeightsError
from deblur.generator import build, gated
from deblur.weights import bundled, load_weights, save_weights

TINY = gated(widths=[4, 8], down=[1, 1], up=[1])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "tiny.safetensors"
    save_weights(build(TINY), path, {"version": "1", "training_data": ["none"]})
    return path


def test_what_is_saved_is_loaded(saved):
    loaded = load_weights(saved)
    assert loaded.metadata["training_data"] == ["none"]
    assert loaded.generator.config == TINY
    assert not loaded.generator.training
    assert loaded.name == "tiny"
    assert next(loaded.generator.parameters()).dtype == torch.float32


def test_nothing_half_written_is_left(saved):
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_every_bundled_file_matches_its_hash_and_limit():
    names = bundled()
    assert "default" in names
    for name, entry in names.items():
        loaded = load_weights(name)
        assert loaded.sha256 == entry["sha256"]
        assert loaded.path.stat().st_size <= 16 * 2**20
        assert {"training_data", "recipe", "value_range"} <= set(loaded.metadata)


def test_a_bundled_file_that_was_changed_is_refused(monkeypatch, tmp_path, saved):
    index = {"default": {"file": saved.name, "sha256": "0" * 64, "summary": ""}}
    (saved.parent / "weights.json").write_text(json.dumps(index))
    monkeypatch.setattr(module, "ASSETS", saved.parent)
    with pytest.raises(WeightsError, match="0" * 64):
        load_weights("default")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>quota</html>", "web page"),
        (b"\x80\x02}q\x00.", "expected safetensors"),
        (b"\xff" * 64, "expected safetensors"),
        (save({"a": torch.zeros(1)}), "got format None"),
    ],
)
def test_what_is_no_weights_file_is_named_as_such(tmp_path, content, says):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=says) as caught:
        load_weights(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="do not fit"):
        load_weights(saved)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"absent\.safetensors"):
        load_weights(tmp_path / "absent.safetensors")


def test_values_that_are_not_finite_are_refused(tmp_path):
    generator = build(TINY)
    with torch.no_grad():
        generator.head.bias[0] = float("nan")
    save_weights(generator, tmp_path / "nan.safetensors", {})
    with pytest.raises(WeightsError, match="not finite"):
        load_weights(tmp_path / "nan.safetensors")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(OptionError, match="default"):
        load_weights("nosuch")
