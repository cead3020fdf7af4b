import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from serving.command import main
from serving.settings import Settings, describe

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """No settings from the developer's own environment."""
    import os

    for name in list(os.environ):
        if name.startswith("DEBLUR_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_table_in_the_readme_is_the_settings():
    text = (ROOT / "serving" / "README.md").read_text(encoding="utf-8")
    begin, end = "<!-- settings: begin -->", "<!-- settings: end -->"
    assert text.split(begin)[1].split(end)[0].strip() == describe(), "run `python -m serving --settings`"


def test_the_table_names_every_variable_that_the_text_names():
    for document in (ROOT / "serving" / "README.md", ROOT / "compose.yaml", ROOT / "Dockerfile"):
        named = set(re.findall(r"DEBLUR_[A-Z_]+[A-Z]", document.read_text(encoding="utf-8")))
        known = {f"DEBLUR_{name.upper()}" for name in Settings.model_fields}
        assert named <= known, document.name


def test_environment_and_dotenv_are_read_and_the_environment_wins(monkeypatch, tmp_path):
    (tmp_path / ".env").write_text("DEBLUR_PORT=81\nDEBLUR_MAX_PIXELS=7\nOTHER=1\n", encoding="utf-8")
    monkeypatch.setenv("DEBLUR_PORT", "82")
    monkeypatch.setenv("DEBLUR_DEVICES", "cuda:0, cuda:1")
    settings = Settings()
    assert (settings.port, settings.max_pixels) == (82, 7)
    assert settings.devices == ("cuda:0", "cuda:1")
    assert settings.host == "127.0.0.1"


def test_keys_are_split_and_never_shown():
    settings = Settings(api_keys="one, two,")
    assert [key.get_secret_value() for key in settings.api_keys] == ["one", "two"]
    assert "one" not in repr(settings)
    assert Settings(api_keys="").api_keys == ()


@pytest.mark.parametrize(
    "values", [{"port": 70000}, {"max_pixels": 0}, {"devices": ""}, {"log_level": "loud"}, {"queue_age_s": -1}]
)
def test_values_that_make_no_sense_are_refused(values):
    with pytest.raises(ValidationError):
        Settings(**values)


def test_bad_settings_end_the_process_with_a_message(monkeypatch):
    monkeypatch.setenv("DEBLUR_PORT", "no-number")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run([sys.executable, "-m", "serving"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "DEBLUR_PORT" in done.stderr
    assert "no-number" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("backend", "weights", "said"),
    [
        ("onnx", "default", "backend onnx: expected weights FILE.onnx"),
        ("openvino", "face.safetensors", "backend openvino: expected weights FILE.onnx"),
        ("compile", "face.onnx", "backend compile: expected weights a name or FILE"),
        ("tensorflow", "default", "got 'tensorflow'"),
    ],
)
def test_a_backend_that_does_not_run_the_weights_is_told_before_anything_is_loaded(
    monkeypatch, capsys, backend, weights, said
):
    monkeypatch.setenv("DEBLUR_BACKEND", backend)
    monkeypatch.setenv("DEBLUR_WEIGHTS", weights)
    assert main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("DEBLUR_BACKEND: ")
    assert said in error
    assert "Value error" not in error
    assert error.count("got") == 1


def test_words_that_mean_nothing_are_refused_and_help_is_given(capsys):
    assert main(["--port", "80"]) == 2
    output = capsys.readouterr()
    assert "got --port 80" in output.err
    assert "DEBLUR_PORT" in output.err
    assert main(["--help"]) == 0
    assert "usage: python -m serving" in capsys.readouterr().out


def test_the_command_prints_the_table(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run([sys.executable, "-m", "serving", "--settings"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == describe()
