"""Which files are taken, and under which names the results go."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deblur.batch.plan import Job, Selection, check_inputs_are_kept, find_jobs
from deblur.errors import OptionError


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def plan(inputs, output, **options):
    found = find_jobs([inputs] if isinstance(inputs, Path) else inputs, output, **options)
    return {job.key: job.output for job in found.jobs}, found


def test_tree_is_mirrored_and_what_is_no_picture_is_counted(tmp_path):
    names = ["a.jpg", "a.png", "sub/a.jpg", "sub/название с пробелом 名前.webp", "x.JPEG"]
    touch(tmp_path / "in", *names, "desktop.ini", ".hidden.jpg", ".trash/b.jpg")
    jobs, found = plan(tmp_path / "in", tmp_path / "out")
    assert jobs == {name: name for name in names}
    assert found.ignored == {"hidden": 1, "not pictures by their names": 1, "in folders left out": 1}


def test_formats_that_meet_do_not_collide(tmp_path):
    touch(tmp_path / "in", "a.jpg", "a.png", "a.jpg.png", "A.PNG.webp", "b.tiff", "sub/a.webp")
    jobs, _ = plan(tmp_path / "in", tmp_path / "out", format="PNG")
    assert len({output.lower() for output in jobs.values()}) == len(jobs) == 6
    assert all(output.endswith(".png") for output in jobs.values())
    assert jobs["b.tiff"] == "b.png"
    assert jobs["a.png"] == "a.png"


def test_names_that_differ_in_case_only_do_not_collide(tmp_path):
    touch(tmp_path / "in", "a.jpg", "A.jpg", "e\u0301.jpg", "\u00e9.jpg")
    jobs, _ = plan(tmp_path / "in", tmp_path / "out")
    assert len(jobs) == 4
    import unicodedata

    assert len({unicodedata.normalize("NFC", output).casefold() for output in jobs.values()}) == 4


def test_new_files_do_not_rename_old_results(tmp_path):
    touch(tmp_path / "in", "b.png")
    before, _ = plan(tmp_path / "in", tmp_path / "out", format="JPEG")
    touch(tmp_path / "in", "b.bmp")
    after, _ = plan(tmp_path / "in", tmp_path / "out", format="JPEG", taken=before)
    assert after["b.png"] == before["b.png"] == "b.jpg"
    assert after["b.bmp"] == "b.bmp.jpg"


def test_another_format_gives_another_name(tmp_path):
    touch(tmp_path / "in", "a.jpg")
    assert plan(tmp_path / "in", tmp_path / "out", taken={"a.jpg": "a.png"})[0] == {"a.jpg": "a.jpg"}
    assert plan(tmp_path / "in", tmp_path / "out", format="WEBP", taken={"a.jpg": "a.png"})[0] == {"a.jpg": "a.webp"}


@given(
    st.sets(
        st.sampled_from(
            [
                f"{d}{s}{e}"
                for d in ("", "d/")
                for s in ("a", "A", "a.jpg", "a~2")
                for e in (".jpg", ".png", ".JPG", ".tif")
            ]
        )
    ),
    st.sampled_from([None, "PNG", "JPEG"]),
)
@settings(max_examples=60, deadline=None)
def test_no_two_inputs_ever_share_an_output(names, format):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        touch(Path(folder) / "in", *names)
        jobs, _ = plan(Path(folder) / "in", Path(folder) / "out", format=format)
    assert set(jobs) == names
    assert len({output.casefold() for output in jobs.values()}) == len(names)


def test_several_inputs_go_side_by_side(tmp_path):
    touch(tmp_path, "p/album/1.jpg", "q/album/1.jpg", "p/1.jpg", "q/1.jpg")
    inputs = [
        tmp_path / "p/album",
        tmp_path / "q/album",
        tmp_path / "p/1.jpg",
        tmp_path / "q/1.jpg",
        tmp_path / "p/1.jpg",
    ]
    _, found = plan(inputs, tmp_path / "out")
    assert [job.output for job in found.jobs] == ["album/1.jpg", "album~2/1.jpg", "1.jpg", "1~2.jpg"]
    assert len({job.key for job in found.jobs}) == 4


def test_file_given_by_name_is_taken_whatever_it_is_called(tmp_path):
    touch(tmp_path, "scan.dat")
    _, found = plan([tmp_path / "scan.dat", tmp_path / "gone.jpg"], tmp_path / "out")
    assert [job.source.name for job in found.jobs] == ["scan.dat"]
    assert found.problems == [(str(tmp_path / "gone.jpg"), "no such file or folder")]


def test_output_inside_the_input_is_no_input(tmp_path):
    touch(tmp_path / "in", "a.jpg", "out/a.jpg", "out/sub/b.jpg")
    assert plan(tmp_path / "in", tmp_path / "in/out")[0] == {"a.jpg": "a.jpg"}


def test_own_files_are_no_input_when_the_output_is_the_input(tmp_path):
    touch(tmp_path, "a.jpg", "a.png", "deblur-compare/a.jpg.jpg", "deblur-report.html")
    jobs, found = plan(tmp_path, tmp_path, format="PNG", taken={"a.jpg": "a.png"})
    assert jobs == {"a.jpg": "a.png"}
    assert found.ignored["written by an earlier run"] == 1


def test_originals_are_not_replaced_unless_asked(tmp_path):
    touch(tmp_path, "a.jpg", "link/x.jpg")
    _, found = plan(tmp_path, tmp_path)
    with pytest.raises(OptionError, match="--overwrite"):
        check_inputs_are_kept(found.jobs, tmp_path, overwrite=False)
    check_inputs_are_kept(found.jobs, tmp_path, overwrite=True)
    check_inputs_are_kept(found.jobs, tmp_path / "out", overwrite=False)


def test_originals_behind_a_link_are_not_replaced_either(tmp_path):
    touch(tmp_path, "real/a.jpg")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").symlink_to(tmp_path / "real/a.jpg")
    (tmp_path / "same").symlink_to(tmp_path / "real")
    jobs = [Job(key="a.jpg", source=tmp_path / "in/a.jpg", output="a.jpg")]
    for output in ("real", "same", "in"):
        with pytest.raises(OptionError, match="original"):
            check_inputs_are_kept(jobs, tmp_path / output, overwrite=False)


def test_link_loops_end_and_each_folder_is_taken_once(tmp_path):
    touch(tmp_path / "in", "a.jpg", "sub/b.jpg")
    touch(tmp_path / "elsewhere", "c.jpg")
    (tmp_path / "in/sub/loop").symlink_to(tmp_path / "in")
    (tmp_path / "in/self").symlink_to("self")
    (tmp_path / "in/again").symlink_to("sub")
    (tmp_path / "in/outside").symlink_to(tmp_path / "elsewhere")
    assert set(plan(tmp_path / "in", tmp_path / "out")[0]) == {"a.jpg", "sub/b.jpg", "outside/c.jpg"}


def test_dead_links_are_kept_to_be_reported_and_pipes_are_not_opened(tmp_path):
    (tmp_path / "dead.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.jpg")
    jobs, found = plan(tmp_path, tmp_path / "out")
    assert set(jobs) == {"dead.jpg"}
    assert found.ignored == {"no regular files": 1}


def test_folder_named_like_a_picture_is_a_folder(tmp_path):
    touch(tmp_path / "in", "x.jpg/y.jpg")
    assert plan(tmp_path / "in", tmp_path / "out")[0] == {"x.jpg/y.jpg": "x.jpg/y.jpg"}


def test_recursive_include_exclude(tmp_path):
    touch(tmp_path / "in", "a.jpg", "b.PNG", "sub/a.jpg", "sub/raw/c.jpg")

    def keys(**options):
        return set(plan(tmp_path / "in", tmp_path / "out", selection=Selection(**options))[0])

    assert keys(recursive=False) == {"a.jpg", "b.PNG"}
    assert keys(include=("*.png",)) == {"b.PNG"}
    assert keys(include=("sub/*",)) == {"sub/a.jpg", "sub/raw/c.jpg"}
    assert keys(exclude=("*/raw/*", "b.*")) == {"a.jpg", "sub/a.jpg"}


def test_shards_part_the_work_and_names_do_not_depend_on_them(tmp_path):
    touch(tmp_path / "in", *(f"{number}.{suffix}" for number in range(40) for suffix in ("jpg", "png")))
    whole, _ = plan(tmp_path / "in", tmp_path / "out", format="PNG")
    parts = [
        plan(tmp_path / "in", tmp_path / "out", format="PNG", selection=Selection(shard=(index, 3)))[0]
        for index in (1, 2, 3)
    ]
    assert sum(len(part) for part in parts) == len(whole)
    assert {key: output for part in parts for key, output in part.items()} == whole
    assert all(len(part) > 10 for part in parts)
