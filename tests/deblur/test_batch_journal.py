"""The journal and the files of a run survive being killed."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deblur.batch.files import check_writable, remove_abandoned, write_atomically
from deblur.batch.journal import FILE_NAME, Entry, Journal
from deblur.errors import OutputError


def entry(key="a.jpg", **values):
    defaults = {"source": f"/in/{key}", "output": key, "status": "restored", "finished": "2026-01-01T00:00:00Z"}
    return Entry(key=key, **{**defaults, **values})


def result(folder, name, content=b"content"):
    import hashlib

    (folder / name).write_bytes(content)
    return {"output_sha256": hashlib.sha256(content).hexdigest(), "output_bytes": len(content)}


def test_lines_come_back(tmp_path):
    first = entry(faces_before=2, confidence_before=0.5, warnings=("w",))
    odd = entry("sub/名 \udcff\n.jpg")
    with Journal(tmp_path) as journal:
        journal.append(first)
        journal.append(odd)
    again = Journal(tmp_path, read_only=True)
    assert again.latest == {first.key: first, odd.key: odd}
    assert len((tmp_path / FILE_NAME).read_bytes().splitlines()) == 2


def test_last_line_of_a_picture_counts(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(entry(status="failed", error="e", finished="2026-01-01T00:00:01Z"))
        journal.append(entry(finished="2026-01-01T00:00:01Z"))
    assert Journal(tmp_path, read_only=True).latest["a.jpg"].succeeded


def test_line_cut_short_by_a_kill_is_left_out_and_does_not_swallow_the_next(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(entry("a.jpg"))
        journal.append(entry("b.jpg"))
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-25])
    with Journal(tmp_path) as journal:
        assert set(journal.latest) == {"a.jpg"}
        journal.append(entry("c.jpg"))
    assert set(Journal(tmp_path, read_only=True).latest) == {"a.jpg", "c.jpg"}


@pytest.mark.parametrize("line", ["[]", "5", "{}", '{"key": 1}', "not json", '{"key": "a", "source": "b", "new": 1}'])
def test_other_lines_do_no_harm(tmp_path, line):
    (tmp_path / FILE_NAME).write_text(line + "\n" + json.dumps(entry("b.jpg").to_json()) + "\n")
    assert "b.jpg" in Journal(tmp_path, read_only=True).latest


def test_result_must_be_there_whole(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append(entry("a.jpg", **result(tmp_path, "a.jpg")))
        journal.append(entry("b.jpg", **result(tmp_path, "b.jpg")))
        journal.append(entry("c.jpg", **result(tmp_path, "c.jpg")))
    (tmp_path / "a.jpg").unlink()
    (tmp_path / "b.jpg").write_bytes(b"cont")
    (tmp_path / "c.jpg").write_bytes(b"CONTENT")  # same size: an older result that the kill left in place
    journal = Journal(tmp_path, read_only=True)
    assert [journal.has_result(journal.latest[key]) for key in ("a.jpg", "b.jpg", "c.jpg")] == [False] * 3
    (tmp_path / "c.jpg").write_bytes(b"content")
    assert journal.has_result(journal.latest["c.jpg"])


def test_two_runs_on_one_folder_are_refused_and_shards_are_not(tmp_path):
    with Journal(tmp_path):
        with pytest.raises(OutputError, match="another run"):
            Journal(tmp_path)
        with Journal(tmp_path, (1, 2)) as one, Journal(tmp_path, (2, 2)) as two:
            one.append(entry("a.jpg"))
            two.append(entry("b.jpg"))
    assert set(Journal(tmp_path, read_only=True).latest) == {"a.jpg", "b.jpg"}


def test_write_replaces_and_keeps_times(tmp_path):
    path = tmp_path / "new" / "a.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two", times_ns=(5, 1_000_000_007))
    assert path.read_bytes() == b"two"
    assert path.stat().st_mtime_ns == 1_000_000_007
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission")]
)
def test_refusals_of_the_disk_are_said_plainly_and_leave_nothing(tmp_path, monkeypatch, number, words):
    (tmp_path / "a.jpg").write_bytes(b"old")

    def refuse(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match=words):
        write_atomically(tmp_path / "a.jpg", b"new")
    assert (tmp_path / "a.jpg").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def test_abandoned_files_go_and_those_of_living_processes_stay(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from deblur.batch.files import write_atomically\n"
        "Path.replace = lambda self, target: os.kill(os.getpid(), 9)\n"
        "write_atomically(Path(sys.argv[1]) / 'a.jpg', b'half')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=Path.cwd())
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    living = tmp_path / next(tmp_path.iterdir()).name.replace("-0.tmp", "-1.tmp")
    parts = living.name.split("-")
    living = tmp_path / "-".join([parts[0], parts[1], str(os.getppid()), "0.tmp"])
    living.touch()
    foreign = tmp_path / f".deblur-00000000-{os.getpid()}-0.tmp"
    foreign.touch()
    old = tmp_path / ".deblur-00000000-1-0.tmp"
    old.touch()
    os.utime(old, (0, 0))
    assert remove_abandoned([tmp_path, tmp_path / "gone"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {living.name, foreign.name}


def test_output_that_is_a_file_or_below_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="got a file"):
        check_writable(tmp_path / "file")
    with pytest.raises(OutputError, match="not a folder"):
        check_writable(tmp_path / "file" / "out")
    check_writable(tmp_path / "new" / "out")
    assert list((tmp_path / "new" / "out").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="permission"):
        check_writable(tmp_path / "out")
    tmp_path.chmod(0o700)
