"""Whole runs over folders, with the real engine on a tiny generator."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

from deblur.batch import Listener, Options, Selection, Settings, run
from deblur.batch.journal import FILE_NAME, read_entries
from deblur.batch.pipeline import PixelBudget
from deblur.batch.runner import BASE_BYTES, pixels_for_memory
from deblur.batch.watch import watch
from deblur.errors import OptionError, OutOfMemory, WeightsError
from deblur.generator import build, gated
from deblur.harm import Limits as HarmLimits
from deblur.images import decode
from deblur.restoration import Restorer
from deblur.weights import load_weights, save_weights

# Any change is let through: the tiny generator is random, and a change is what these tests look for.
ANYTHING_GOES = HarmLimits(least_extent=1e-6, confidence_drop=1.0, landmark_shift=100.0, colour_shift=1.0)


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    torch.manual_seed(0)
    generator = build(gated(widths=(4, 8), down=(1, 1), up=(1,)))
    for parameter in generator.parameters():
        if not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.02)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(generator, path, {"version": "test"})
    return path


@pytest.fixture(scope="session")
def restorer(weights_file):
    return Restorer(load_weights(weights_file), device="cpu", precision="fp32", harm=ANYTHING_GOES)


@pytest.fixture(scope="session")
def portrait():
    blurred = cv2.filter2D(data.astronaut()[:240, 110:330], -1, np.eye(7) / 7)
    return np.ascontiguousarray(blurred)


@pytest.fixture
def folder(tmp_path, portrait):
    root = tmp_path / "in"
    (root / "sub").mkdir(parents=True)
    Image.fromarray(portrait).save(root / "a.jpg", quality=95)
    Image.fromarray(portrait).save(root / "a.png")
    Image.fromarray(portrait[:, ::-1]).save(root / "sub" / "名前 with space.png")
    Image.new("RGB", (40, 30), (33, 25, 23)).save(root / "sub" / "flat.png")
    return root


def options(folder, output, **settings):
    selection = {key: settings.pop(key) for key in ("include", "exclude", "recursive", "shard") if key in settings}
    return Options(
        inputs=(folder,), settings=Settings(output=output, jobs=2, **settings), selection=Selection(**selection)
    )


def journal(output):
    with (output / FILE_NAME).open(encoding="utf-8", errors="surrogateescape") as stream:
        return read_entries(stream)


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def results(output):
    return {name: content for name, content in files(output).items() if not name.startswith("deblur-")}


class TestResults:
    def test_tree_faces_and_journal(self, folder, tmp_path, restorer):
        originals = files(folder)
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert files(folder) == originals
        assert set(results(tmp_path / "out")) == set(originals)
        assert (summary.restored, summary.unchanged, summary.failed) == (3, 1, [])
        assert summary.faces_before >= 3
        for entry in journal(tmp_path / "out"):
            content = (tmp_path / "out" / entry.output).read_bytes()
            assert entry.output_sha256 == hashlib.sha256(content).hexdigest()
            assert entry.input_sha256 == hashlib.sha256(originals[entry.key]).hexdigest()
            assert entry.weights_sha256 == restorer.weights.sha256
            assert entry.seconds > 0

    def test_results_are_those_of_the_restorer(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out"), lambda: restorer)
        for name in ("a.png", "sub/名前 with space.png"):
            alone = restorer.restore(str(folder / name)).picture.levels
            together = decode(tmp_path / "out" / name).levels
            assert np.abs(alone.astype(int) - together).max() <= 1
            assert not np.array_equal(together, decode(folder / name).levels)

    def test_picture_without_a_face_is_copied_byte_for_byte(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out"), lambda: restorer)
        assert (tmp_path / "out/sub/flat.png").read_bytes() == (folder / "sub/flat.png").read_bytes()

    def test_times_are_kept(self, folder, tmp_path, restorer):
        os.utime(folder / "a.png", ns=(10**18, 10**18 + 7))
        run(options(folder, tmp_path / "out"), lambda: restorer)
        assert (tmp_path / "out/a.png").stat().st_mtime_ns == 10**18 + 7

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
    def test_one_format_for_all(self, folder, tmp_path, restorer, format):
        run(options(folder, tmp_path / "out", format=format), lambda: restorer)
        contents = results(tmp_path / "out")
        assert len(contents) == 4
        assert {decode(content).format for content in contents.values()} == {format}

    def test_gif_that_changes_becomes_png_and_one_that_does_not_stays(self, tmp_path, portrait, restorer):
        root = tmp_path / "in"
        root.mkdir()
        Image.fromarray(portrait).save(root / "face.gif")
        frames = [Image.new("L", (16, 16), level) for level in (10, 200)]
        frames[0].save(root / "anim.gif", save_all=True, append_images=frames[1:])
        for _ in range(2):
            run(options(root, tmp_path / "out"), lambda: restorer)
        assert set(results(tmp_path / "out")) == {"face.gif.png", "anim.gif"}
        assert (tmp_path / "out/anim.gif").read_bytes() == (root / "anim.gif").read_bytes()
        entries = journal(tmp_path / "out")
        assert len(entries) == 2
        assert "first of 2" in next(entry for entry in entries if entry.key == "anim.gif").warnings[0]

    def test_wrong_suffix_is_kept_with_the_format(self, tmp_path, portrait, restorer):
        root = tmp_path / "in"
        root.mkdir()
        Image.fromarray(portrait).save(root / "x.png", format="JPEG")
        run(options(root, tmp_path / "out"), lambda: restorer)
        assert decode(tmp_path / "out/x.png").format == "JPEG"

    def test_comparisons(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out", compare=True), lambda: restorer)
        sheet = decode(tmp_path / "out/deblur-compare/a.png.jpg")
        assert sheet.width == 2 * 220 + 8
        assert len(list((tmp_path / "out/deblur-compare").rglob("*.jpg"))) == 4


class TestResume:
    def test_second_run_does_nothing(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out"), lambda: restorer)
        before = files(tmp_path / "out")
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert (summary.written, summary.done_before) == (0, 4)
        assert files(tmp_path / "out") == before

    def test_changed_and_failed_and_deleted_are_done_again(self, folder, tmp_path, restorer, portrait):
        (folder / "bad.png").write_text("no picture")
        first = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert len(first.failed) == 1
        Image.fromarray(portrait).save(folder / "bad.png")
        Image.fromarray(portrait[::2, ::2]).save(folder / "a.jpg")
        (tmp_path / "out/a.png").unlink()
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert (summary.written, summary.done_before, summary.failed) == (3, 2, [])
        assert decode(tmp_path / "out/a.jpg").width == 110

    def test_touched_but_equal_input_is_not_done_again(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out"), lambda: restorer)
        os.utime(folder / "a.jpg")
        assert run(options(folder, tmp_path / "out"), lambda: restorer).written == 0

    def test_other_weights_or_settings_are_done_again(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "out"), lambda: restorer)
        other = Restorer(replace(restorer.weights, sha256="0" * 64), device="cpu", precision="fp32")
        assert run(options(folder, tmp_path / "out"), lambda: other).written == 4
        assert run(options(folder, tmp_path / "out", mode="faces"), lambda: other).written == 4

    def test_foreign_files_are_left_alone_unless_told(self, folder, tmp_path, restorer):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/a.jpg").write_bytes(b"mine")
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert (summary.existing, summary.written) == (1, 3)
        assert (tmp_path / "out/a.jpg").read_bytes() == b"mine"
        assert run(options(folder, tmp_path / "out", overwrite=True), lambda: restorer).written == 4
        assert decode(tmp_path / "out/a.jpg").format == "JPEG"

    def test_in_place_only_when_asked_and_only_once(self, folder, restorer):
        before = files(folder)
        with pytest.raises(OptionError, match="original"):
            run(options(folder, folder), lambda: restorer)
        assert results(folder) == before
        assert run(options(folder, folder, overwrite=True), lambda: restorer).written == 4
        once = results(folder)
        assert set(once) == set(before)
        assert run(options(folder, folder, overwrite=True), lambda: restorer).written == 0
        assert results(folder) == once

    def test_output_inside_the_input(self, folder, restorer):
        for _ in range(2):
            run(options(folder, folder / "out"), lambda: restorer)
        assert set(results(folder / "out")) == {"a.jpg", "a.png", "sub/flat.png", "sub/名前 with space.png"}

    def test_shards_together_equal_one_run(self, folder, tmp_path, restorer):
        run(options(folder, tmp_path / "whole"), lambda: restorer)
        for index in (1, 2):
            run(options(folder, tmp_path / "parts", shard=(index, 2)), lambda: restorer)
        assert results(tmp_path / "parts") == results(tmp_path / "whole")
        assert run(options(folder, tmp_path / "parts"), lambda: restorer).done_before == 4


KILLED = """
import os, sys
from pathlib import Path
import torch
from deblur.batch import Options, Settings, run
from deblur.restoration import Restorer
from deblur.weights import load_weights
import deblur.batch.files as files
real, calls = Path.replace, []
def replace(self, target):
    calls.append(target)
    if len(calls) == 3 and sys.argv[4] == "before":
        os.kill(os.getpid(), 9)
    real(self, target)
    if len(calls) == 3:
        os.kill(os.getpid(), 9)
Path.replace = replace
torch.set_num_threads(1)
restorer = Restorer(load_weights(sys.argv[3]), device="cpu", precision="fp32")
run(Options(inputs=(Path(sys.argv[1]),), settings=Settings(output=Path(sys.argv[2]))), lambda: restorer)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_in_the_middle(tmp_path, weights_file, moment):
    root, output = tmp_path / "in", tmp_path / "out"
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(root / f"{number}.png")
    command = [sys.executable, "-c", KILLED, str(root), str(output), str(weights_file), moment]
    killed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    there = results(output)
    done = {name: content for name, content in there.items() if not name.endswith(".tmp")}
    assert len(done) == (2 if moment == "before" else 3)
    for content in done.values():
        decode(content)  # whole
    ages = {name: (output / name).stat().st_ino for name in done}
    restorer = Restorer(load_weights(weights_file), device="cpu", precision="fp32")
    summary = run(options(root, output), lambda: restorer)
    assert summary.written == 6 - len(done)
    assert summary.done_before == len(done)
    assert set(results(output)) == {f"{number}.png" for number in range(6)}
    assert {name: (output / name).stat().st_ino for name in done} == ages


class TestFailures:
    def test_bad_files_are_named_and_the_rest_go_on(self, folder, tmp_path, restorer):
        (folder / "text.png").write_text("no picture")
        (folder / "empty.jpg").touch()
        (folder / "cut.jpg").write_bytes((folder / "a.jpg").read_bytes()[:3000])
        (folder / "dead.jpg").symlink_to("nowhere")
        Image.new("1", (20000, 20000)).save(folder / "bomb.png")
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert summary.written == 4
        assert {Path(source).name for source, _ in summary.failed} == {
            "text.png",
            "empty.jpg",
            "cut.jpg",
            "dead.jpg",
            "bomb.png",
        }
        assert all(Path(source).name in error for source, error in summary.failed)
        assert len(results(tmp_path / "out")) == 4

    def test_vanished_file(self, folder, tmp_path, restorer):
        def load():
            (folder / "a.jpg").unlink()  # after the scan
            return restorer

        summary = run(options(folder, tmp_path / "out"), load)
        assert summary.written == 3
        assert "cannot be read" in summary.failed[0][1]

    def test_full_disk_fails_that_picture_and_leaves_nothing_half_written(
        self, folder, tmp_path, restorer, monkeypatch
    ):
        real = Path.replace

        def full(self, target):
            if target.name == "a.png":
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, target)

        monkeypatch.setattr(Path, "replace", full)
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert [error for _, error in summary.failed] == [
            f"{tmp_path / 'out/a.png'}: cannot be written: the disk is full"
        ]
        assert len(results(tmp_path / "out")) == 3
        monkeypatch.undo()
        assert run(options(folder, tmp_path / "out"), lambda: restorer).written == 1

    def test_output_in_the_way_of_a_folder(self, folder, tmp_path, restorer):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/sub").touch()
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert summary.written == 2
        assert len(summary.failed) == 2

    def test_generator_failure_takes_one_picture_not_its_batch(self, folder, tmp_path, restorer, monkeypatch):
        real = restorer.generate
        flat_seen = []

        def generate(inputs):
            if any(item.shape[1:] == flat_shape for item in inputs):
                flat_seen.append(len(inputs))
                raise OutOfMemory("no room")
            return real(inputs)

        flat_shape = restorer.plan(decode(folder / "sub/flat.png")).inputs[0].shape[1:]
        monkeypatch.setattr(restorer, "generate", generate)
        summary = run(options(folder, tmp_path / "out"), lambda: restorer)
        assert summary.written == 3
        assert [(Path(source).name, error) for source, error in summary.failed] == [("flat.png", "no room")]
        assert flat_seen

    def test_damaged_weights_end_the_run(self, folder, tmp_path, restorer, monkeypatch):
        def fail(*arguments, **options):
            raise WeightsError("gone")

        monkeypatch.setattr(restorer, "plan", fail)
        with pytest.raises(WeightsError):
            run(options(folder, tmp_path / "out"), lambda: restorer)

    def test_stop_finishes_what_is_in_flight(self, folder, tmp_path, restorer):
        stops = []

        def done(outcome, summary):
            stops[0]()

        listener = Listener(started=lambda count, stop: stops.append(stop), done=done)
        settings = options(folder, tmp_path / "out", pixels_in_flight=1)  # one at a time
        summary = run(settings, lambda: restorer, listener)
        assert summary.interrupted
        assert 1 <= summary.written <= 2
        assert summary.left == 4 - summary.written
        assert run(options(folder, tmp_path / "out"), lambda: restorer).written == summary.left


class TestMemory:
    def test_budget_admits_up_to_its_limit_and_a_larger_one_alone(self):
        budget = PixelBudget(10)
        assert budget.acquire(25, lambda: False)
        assert not budget.acquire(1, lambda: True)
        budget.release(25)
        assert budget.acquire(6, lambda: False)
        assert budget.acquire(4, lambda: False)
        waiting = threading.Thread(target=budget.acquire, args=(5, lambda: False), daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        budget.release(6)
        waiting.join(2)
        assert not waiting.is_alive()

    def test_pixels_never_exceed_the_limit(self, folder, tmp_path, restorer):
        held, most = [0], [0]
        acquire, release = PixelBudget.acquire, PixelBudget.release
        lock = threading.Lock()

        class Watched(PixelBudget):
            def acquire(self, pixels, stopped):
                admitted = acquire(self, pixels, stopped)
                with lock:
                    held[0] += pixels
                    most[0] = max(most[0], held[0])
                return admitted

            def release(self, pixels):
                with lock:
                    held[0] -= pixels
                release(self, pixels)

        import deblur.batch.pipeline as pipeline

        pipeline.PixelBudget, before = Watched, pipeline.PixelBudget
        try:
            run(options(folder, tmp_path / "out", pixels_in_flight=60_000), lambda: restorer)
        finally:
            pipeline.PixelBudget = before
        assert held == [0]
        assert 0 < most[0] <= 60_000

    def test_limit_on_memory(self):
        assert pixels_for_memory(BASE_BYTES + 2**30) > pixels_for_memory(BASE_BYTES + 2**29) >= 4_000_000
        assert pixels_for_memory(None) >= 1_000_000
        with pytest.raises(OptionError, match="MiB"):
            pixels_for_memory(2**20)


def test_watch_takes_new_pictures_once_they_are_whole(tmp_path, portrait, restorer):
    root, stop = tmp_path / "drop", threading.Event()
    root.mkdir()
    seen = []

    def done(outcome, summary):
        seen.append((outcome.job.key, outcome.entry.status))
        if len(seen) == 3:
            stop.set()

    thread = threading.Thread(
        target=watch,
        args=(options(root, tmp_path / "out"), lambda: restorer, Listener(done=done), stop, 0.05),
    )
    thread.start()
    Image.fromarray(portrait).save(tmp_path / "one.png")
    (tmp_path / "one.png").rename(root / "one.png")
    (root / "bad.png").write_text("no picture")
    for _ in range(200):
        if len(seen) == 2 or not thread.is_alive():
            break
        stop.wait(0.05)
    Image.fromarray(portrait[::2]).save(tmp_path / "bad.png")
    (tmp_path / "bad.png").replace(root / "bad.png")
    thread.join(20)
    assert sorted(seen[:2]) == [("bad.png", "failed"), ("one.png", "restored")]
    assert seen[2][0] == "bad.png"
    assert seen[2][1] != "failed"


def test_journal_is_plain_json(folder, tmp_path, restorer):
    run(options(folder, tmp_path / "out"), lambda: restorer)
    lines = [json.loads(line) for line in (tmp_path / "out" / FILE_NAME).read_text(encoding="utf-8").splitlines()]
    assert {
        "key",
        "input_sha256",
        "output",
        "faces_before",
        "faces_after",
        "seconds",
        "weights_sha256",
        "error",
    } <= set(lines[0])
