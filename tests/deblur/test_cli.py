"""The command line: exit codes, messages, streams; never a traceback."""

import io
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import deblur
import deblur.batch.runner
from deblur.batch.progress import printable
from deblur.cli import main
from deblur.generator import build, gated
from deblur.images import decode
from deblur.weights import save_weights


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(build(gated(widths=(4, 8), down=(1, 1), up=(1,))), path, {"version": "test"})
    return str(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "in put"
    (root / "sub").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "один.png")
    Image.fromarray(pixels).save(root / "sub" / "two.jpg")
    return root


def deblur_restore(folder, output, weights, *more):
    return main(["restore", str(folder), "-o", str(output), "--weights", weights, "--device", "cpu", *more])


class TestRestore:
    def test_folder(self, folder, tmp_path, weights, capsys):
        assert deblur_restore(folder, tmp_path / "out", weights) == 0
        out, err = capsys.readouterr()
        assert "2 pictures written" in out
        assert "faces: 0" in out
        assert "[2/2]" in err
        assert sorted(path.name for path in (tmp_path / "out").rglob("*.*")) == [
            "deblur-journal.jsonl",
            "two.jpg",
            "один.png",
        ]
        assert deblur_restore(folder, tmp_path / "out", weights) == 0
        assert "2 done before" in capsys.readouterr().out

    def test_failed_picture_gives_1_and_is_named(self, folder, tmp_path, weights, capsys):
        (folder / "bad.png").write_text("no picture")
        assert deblur_restore(folder, tmp_path / "out", weights) == 1
        out, err = capsys.readouterr()
        assert "bad.png: no picture" in out
        assert "bad.png: no picture" in err

    def test_quiet_prints_failures_only(self, folder, tmp_path, weights, capsys):
        assert deblur_restore(folder, tmp_path / "out", weights, "--quiet") == 0
        assert capsys.readouterr() == ("", "")
        (folder / "bad.png").write_text("no picture")
        assert deblur_restore(folder, tmp_path / "out", weights, "--quiet") == 1
        assert "bad.png" in capsys.readouterr().err

    def test_json_lines(self, folder, tmp_path, weights, capsys):
        (folder / "bad.png").write_text("no picture")
        assert deblur_restore(folder, tmp_path / "out", weights, "--json") == 1
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [record["type"] for record in records] == ["picture"] * 3 + ["summary"]
        assert records[-1]["unchanged"] == 2
        assert records[-1]["failed"][0]["source"].endswith("bad.png")

    def test_dry_run_writes_nothing(self, folder, tmp_path, weights, capsys):
        assert deblur_restore(folder, tmp_path / "out", weights, "--dry-run", "--format", "webp") == 0
        out = capsys.readouterr().out
        assert f"{folder / 'sub/two.jpg'} -> {tmp_path / 'out/sub/two.webp'}" in out
        assert not (tmp_path / "out").exists()

    def test_selection(self, folder, tmp_path, weights):
        assert deblur_restore(folder, tmp_path / "a", weights, "--no-recursive") == 0
        assert not (tmp_path / "a/sub").exists()
        assert deblur_restore(folder, tmp_path / "b", weights, "--include", "*.jpg", "--exclude", "none*") == 0
        assert [path.name for path in (tmp_path / "b").rglob("*.*g")] == ["two.jpg"]

    @pytest.mark.parametrize("kind", ["html", "json"])
    def test_reports(self, folder, tmp_path, weights, kind):
        (folder / "<b>&.png").write_text("no picture")
        assert deblur_restore(folder, tmp_path / "out", weights, "--report", kind) == 1
        text = (tmp_path / f"out/deblur-report.{kind}").read_text(encoding="utf-8")
        if kind == "json":
            content = json.loads(text)
            assert len(content["pictures"]) == 3
            assert content["summary"]["unchanged"] == 2
        else:
            assert "&lt;b&gt;&amp;.png" in text
            assert "<b>&.png" not in text
            assert "http" not in text  # self-contained

    def test_report_elsewhere(self, folder, tmp_path, weights):
        assert deblur_restore(folder, tmp_path / "out", weights, "--report", str(tmp_path / "r.html")) == 0
        assert (tmp_path / "r.html").exists()
        assert deblur_restore(folder, tmp_path / "out", weights, "--report", "r.docx") == 2


class TestOnePicture:
    def test_to_a_file_of_another_format(self, folder, tmp_path, weights, capsys):
        assert deblur_restore(folder / "один.png", tmp_path / "new" / "x.webp", weights) == 0
        assert decode(tmp_path / "new/x.webp").format == "WEBP"
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.webp"]
        assert "1 picture written" in capsys.readouterr().out

    def test_existing_file_is_not_replaced_unless_told(self, folder, tmp_path, weights, capsys):
        (tmp_path / "x.png").write_bytes(b"mine")
        assert deblur_restore(folder / "один.png", tmp_path / "x.png", weights) == 1
        assert "--overwrite" in capsys.readouterr().err
        assert (tmp_path / "x.png").read_bytes() == b"mine"
        assert deblur_restore(folder / "один.png", tmp_path / "x.png", weights, "--overwrite") == 0
        assert deblur_restore(folder / "один.png", folder / "один.png", weights) == 2

    def test_stdin_to_stdout(self, folder, weights, monkeypatch, capsysbinary):
        content = (folder / "один.png").read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert main(["restore", "-", "-o", "-", "--weights", weights]) == 0
        out, err = capsysbinary.readouterr()
        assert out == content  # no face: byte for byte
        assert b"1 picture" in err

    def test_bad_stdin(self, weights, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no picture")))
        assert main(["restore", "-", "-o", str(tmp_path / "x.png"), "--weights", weights]) == 1
        assert "stdin: no picture" in capsys.readouterr().err


class TestRefusals:
    @pytest.mark.parametrize(
        "words",
        [
            ["--quality", "0"],
            ["--quality", "101"],
            ["--format", "docx"],
            ["--jobs", "0"],
            ["--max-megapixels", "0"],
            ["--limit-memory", "5M"],
            ["--watch", "-1"],
            ["--weights", "unknown-name"],
            ["--precision", "fp7"],
        ],
    )
    def test_wrong_values_give_2_and_one_line(self, folder, tmp_path, weights, capsys, words):
        assert deblur_restore(folder, tmp_path / "out", weights, *words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.strip().splitlines()) == 1
        assert "expected" in err

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["restore"],
            ["frobnicate"],
            ["restore", "x"],
            ["restore", "x", "-o", "y", "--shard", "3/2"],
            ["restore", "x", "-o", "y", "--limit-memory", "lots"],
            ["restore", "x", "-o", "y", "--mode", "magic"],
        ],
    )
    def test_wrong_words_give_2(self, words, capsys):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
        assert "usage" in capsys.readouterr().err

    def test_several_inputs_to_stdout(self, folder, weights, capsys):
        assert main(["restore", str(folder), str(folder), "-o", "-", "--weights", weights]) == 2
        assert main(["restore", str(folder), "-o", "-", "--weights", weights]) == 2
        assert "Traceback" not in capsys.readouterr().err

    def test_originals_are_safe(self, folder, weights, capsys):
        before = (folder / "один.png").read_bytes()
        assert deblur_restore(folder, folder, weights) == 2
        assert "original" in capsys.readouterr().err
        assert (folder / "один.png").read_bytes() == before

    def test_nothing_to_do_gives_3(self, folder, tmp_path, weights, capsys):
        (tmp_path / "empty").mkdir()
        assert deblur_restore(tmp_path / "empty", tmp_path / "out", weights) == 3
        assert deblur_restore(tmp_path / "gone", tmp_path / "out", weights) == 3
        assert deblur_restore(folder, tmp_path / "out", str(tmp_path / "gone.safetensors")) == 3
        assert "gone.safetensors" in capsys.readouterr().err
        (tmp_path / "file").touch()
        assert deblur_restore(folder, tmp_path / "file" / "out", weights) == 3
        assert (
            main(["restore", str(folder), "-o", str(tmp_path / "o"), "--weights", weights, "--device", "cuda:99"]) == 3
        )

    @pytest.mark.parametrize("debug", [False, True])
    def test_bug_is_one_message_and_a_traceback_only_on_demand(
        self, folder, tmp_path, weights, capsys, caplog, monkeypatch, debug
    ):
        def fail(*arguments):
            raise RuntimeError("odd\nthing")

        monkeypatch.setattr(deblur.batch.runner, "run", fail)
        monkeypatch.setenv("DEBLUR_DEBUG", "1" if debug else "")
        assert deblur_restore(folder, tmp_path / "out", weights) == 70
        err = capsys.readouterr().err
        assert "unexpected RuntimeError: odd thing" in err
        assert "report" in err
        assert "Traceback" not in err
        assert ("Traceback" in caplog.text) == debug

    def test_ctrl_c_before_the_work(self, folder, tmp_path, weights, monkeypatch, capsys):
        def interrupt(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(deblur, "load", interrupt)
        assert deblur_restore(folder, tmp_path / "out", weights) == 130
        assert "Traceback" not in capsys.readouterr().err


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
import torch
from deblur.cli import main
torch.set_num_threads(1)
real, calls = Path.replace, []
def replace(self, target):
    calls.append(target)
    if len(calls) == 2:
        os.kill(os.getpid(), int(sys.argv[1]))
    return real(self, target)
Path.replace = replace
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_finishes_the_picture_at_hand_and_says_how_to_go_on(tmp_path, weights, number):
    root = tmp_path / "in"
    root.mkdir()
    for index in range(40):
        Image.new("RGB", (500, 500), (index, 0, 0)).save(root / f"{index}.png")
    words = ["restore", str(root), "-o", str(tmp_path / "out"), "--weights", weights, "--jobs", "1"]
    command = [sys.executable, "-c", INTERRUPTED, str(int(number)), *words]
    stopped = subprocess.run(command, check=False, capture_output=True, text=True)
    assert stopped.returncode == 130, stopped.stderr
    assert "Run the same command again" in stopped.stdout
    assert "Traceback" not in stopped.stderr
    written = list((tmp_path / "out").glob("*.png"))
    assert 2 <= len(written) < 40
    assert not list((tmp_path / "out").glob("*.tmp"))
    lines = (tmp_path / "out/deblur-journal.jsonl").read_text().splitlines()
    assert len(lines) == len(written)


class TestInfo:
    def test_text_and_json(self, weights, capsys):
        assert main(["info", "--weights", weights, "--device", "cpu"]) == 0
        assert "sha256" in capsys.readouterr().out
        assert main(["info", "--weights", weights, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
        assert len(found["weights"]["sha256"]) == 64
        assert found["weights"]["metadata"]["version"] == "test"

    def test_missing_weights_are_a_problem_with_code_3(self, tmp_path, capsys):
        assert main(["info", "--weights", str(tmp_path / "gone.safetensors")]) == 3
        assert "gone.safetensors" in capsys.readouterr().out

    def test_version(self, capsys):
        with pytest.raises(SystemExit) as caught:
            main(["--version"])
        assert caught.value.code == 0
        assert deblur.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["restore", "--help"], ["info", "--help"]])
def test_help_imports_neither_torch_nor_numpy(words):
    code = (
        "import sys, contextlib\nfrom deblur.cli import main\n"
        "with contextlib.suppress(SystemExit): main(sys.argv[1:])\n"
        "print([name for name in ('torch', 'numpy', 'cv2', 'PIL') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "exit codes" in result.stdout or words[0] == "info"
    assert result.stdout.rstrip().endswith("[]")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_on_a_terminal(folder, tmp_path, weights, monkeypatch):
    (folder / "bad.png").write_text("no picture")
    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    assert deblur_restore(folder, tmp_path / "out", weights) == 1
    text = err.getvalue()
    assert "3/3" in text
    assert "faces 0 -> 0, failed 1" in text
    assert "failed: " in text


def test_names_cannot_play_tricks_on_a_terminal():
    assert printable("a\x1b[31m\nb\udcff.jpg") == "a\\x1b[31m\\nb\\udcff.jpg"
    assert printable("名前 ü.jpg") == "名前 ü.jpg"
