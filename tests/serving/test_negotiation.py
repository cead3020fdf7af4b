import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import Problem
from serving.negotiation import IMAGE_TYPES, negotiate


@pytest.mark.parametrize(
    ("accept", "json", "written"),
    [
        (None, False, "jpeg"),
        ("", False, "jpeg"),
        ("*/*", False, "jpeg"),
        ("image/*", False, "jpeg"),
        ("image/png", False, "png"),
        ("IMAGE/PNG", False, "png"),
        ("image/jpg", False, "jpeg"),
        ("image/png;q=0.2, image/webp;q=0.9", False, "webp"),
        ("image/png ; q=0.2 , image/webp ; q=0.9", False, "webp"),
        ("image/*;q=0.5, image/webp", False, "webp"),
        ("*/*, image/jpeg;q=0", False, "png"),  # anything but the input's own
        ("image/jpeg;q=0.1, */*;q=0.5", False, "png"),
        ("application/json", True, "jpeg"),
        ("application/*", True, "jpeg"),
        ("application/json, image/png", False, "png"),  # a tie: the picture
        ("application/json, image/png;q=0.9", True, "jpeg"),
        ("application/json;q=0.4, image/png;q=0.5", False, "png"),
        ("application/json, text/plain, */*", False, "jpeg"),
        ("text/html, image/avif, image/webp, */*;q=0.8", False, "webp"),
        ("garbage, image/png", False, "png"),
    ],
)
def test_accept_decides(accept, json, written):
    answer = negotiate(accept, None)
    assert answer.json == json
    assert answer.format_for("jpeg", accept) == written


@pytest.mark.parametrize(
    "accept", ["text/html", "image/gif", "video/*", "image/png;q=0", "*/*;q=0", "image/png;q=nonsense", "nothing"]
)
def test_nothing_acceptable_is_406(accept):
    with pytest.raises(Problem) as caught:
        negotiate(accept, None)
    assert caught.value.status == 406
    assert "image/png" in caught.value.detail


def test_format_overrides_accept_but_not_the_report():
    assert negotiate("image/png", "webp").format == "webp"
    assert negotiate("text/html", "webp") == negotiate(None, "webp")
    answer = negotiate("application/json", "webp")
    assert answer.json
    assert answer.format_for("jpeg", "application/json") == "webp"


def test_an_input_that_needs_an_extra_keeps_its_family_unless_told_otherwise():
    assert negotiate("*/*", None).format_for("heif", "*/*") == "heif"
    assert negotiate("image/png", None).format_for("heif", "image/png") == "png"
    assert negotiate("image/*", None).format_for("png", "image/*") == "png"


@given(st.text(max_size=200))
def test_any_header_gives_an_answer_or_406(accept):
    status, written = 200, "png"
    try:
        written = negotiate(accept, None).format_for("tiff", accept)
    except Problem as problem:
        status = problem.status
    assert status in (200, 406)
    assert written in IMAGE_TYPES
