"""The page, in a headless Chromium, against the real service."""

import dataclasses

import numpy as np
import pytest

from tests.serving import browser as chromium
from tests.serving.support import encoded, noise, opened, running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

SHOWN = "!document.getElementById('result').hidden"
TOLD = "!document.getElementById('problem').hidden"
TEXT = "document.getElementById('{}').textContent.trim()"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, client):
    browser.complaints.clear()
    browser.open(str(client.base_url))
    return browser


@pytest.fixture(scope="module")
def portrait(tmp_path_factory):
    """A file with a real face."""
    data = pytest.importorskip("skimage.data")
    from PIL import Image

    path = tmp_path_factory.mktemp("pictures") / "my portrait.jpg"
    Image.fromarray(data.astronaut()[:300, 100:400]).save(path, quality=90)
    return path


def test_a_chosen_picture_is_shown_before_and_after_with_its_faces(page, portrait, tmp_path):
    page.choose("#file", portrait)
    page.until(SHOWN)
    assert page.run("document.getElementById('faces').rows.length") == 1
    row = page.run("[...document.getElementById('faces').rows[0].cells].map((cell) => cell.textContent)")
    assert row[0] == "1"
    assert float(row[1].rstrip("%")) > 90
    assert float(row[2].rstrip("%")) > 90
    assert page.run(TEXT.format("verdict")).startswith("1 face found before, 1 after; mean confidence")
    assert page.run(TEXT.format("status")) == page.run(TEXT.format("verdict"))  # screen readers are told
    assert page.run("document.activeElement.id") == "result-title"
    assert page.run("document.querySelectorAll('#boxes rect').length") == 1
    for image in ("before", "after"):
        page.until(f"document.getElementById('{image}').naturalWidth === 300")
    assert page.run("document.getElementById('download').download") == "my portrait-restored.jpg"
    assert page.run("document.getElementById('download').href === document.getElementById('after').src")
    page.screenshot(tmp_path / "page.png")
    shot = np.asarray(opened((tmp_path / "page.png").read_bytes()).convert("RGB"))
    assert shot.std() > 20


def test_the_slider_works_from_the_keyboard_and_says_its_value(page, portrait):
    page.choose("#file", portrait)
    page.until(SHOWN)
    page.run("document.getElementById('slider').focus()")
    for _ in range(3):
        page.press("ArrowRight")
    value = page.run("document.getElementById('slider').getAttribute('aria-valuetext')")
    assert value == "53% before, 47% after"
    assert "47%" in page.run("getComputedStyle(document.getElementById('before')).clipPath")
    page.press("Home")
    assert page.run("document.getElementById('slider').value") == "0"


def test_every_control_has_a_name_and_is_reached_by_tab(page, portrait):
    page.choose("#file", portrait)
    page.until(SHOWN)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    wanted = {"button", "slider", "combobox", "checkbox", "link", "textbox"}
    controls = [n for n in nodes if not n["ignored"] and n["role"]["value"] in wanted]
    names = {(n["role"]["value"], n["name"]["value"]) for n in controls}
    assert all(name for _, name in names), names
    assert {role for role, _ in names} >= {"slider", "combobox", "checkbox", "link"}
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id"))
    assert {"file", "mode", "slider", "download", "show-boxes"} <= set(reached)


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_a_picture_can_be_pasted_and_dropped(page, event):
    content = list(encoded(noise(40, 30)))
    page.run(
        f"""(() => {{
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array({content})], "x.png", {{ type: "image/png" }}));
          const made = "{event}" === "paste"
            ? new ClipboardEvent("paste", {{ clipboardData: data, bubbles: true }})
            : new DragEvent("drop", {{ dataTransfer: data, bubbles: true, cancelable: true }});
          document.body.dispatchEvent(made);
        }})()"""
    )
    page.until(SHOWN)
    assert page.run(TEXT.format("verdict")).startswith("No face was found")
    assert page.run("document.getElementById('after').naturalWidth") in (0, 40)


def test_a_refused_file_is_said_clearly(page, tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("not a picture", encoding="utf-8")
    page.choose("#file", path)
    page.until(TOLD)
    assert page.run(TEXT.format("problem-title")).startswith("notes.png was refused: ")
    assert page.run("document.getElementById('again').hidden")  # the same file would be refused again
    assert page.run("document.getElementById('problem').getAttribute('role')") == "alert"
    assert page.run("document.getElementById('result').hidden")
    assert page.run("document.getElementById('working').hidden")


def test_a_busy_service_is_said_clearly_and_can_be_tried_again(page, client, tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(encoded(noise()))
    admission = client.app.state.service.admission
    admission.draining = True
    try:
        page.choose("#file", path)
        page.until(TOLD)
        assert page.run("document.getElementById('problem').className") == "message busy"
        assert page.run("document.getElementById('again').disabled")
        assert "1 s" in page.run(TEXT.format("again"))
    finally:
        admission.draining = False
    page.until("!document.getElementById('again').disabled")
    page.run("document.getElementById('again').click()")
    page.until(SHOWN)


def test_a_full_queue_is_said_once_with_the_reason(page, client, tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(encoded(noise()))
    admission = client.app.state.service.admission
    bounds = admission.bounds
    admission.bounds = dataclasses.replace(bounds, requests=0)
    try:
        page.choose("#file", path)
        page.until(TOLD)
    finally:
        admission.bounds = bounds
    assert page.run(TEXT.format("problem-title")) == "The service is busy."
    assert page.run(TEXT.format("problem-detail")).startswith("0 requests are inside")
    assert not page.run("document.getElementById('again').hidden")


def test_a_format_that_browsers_do_not_show_comes_back_as_png(page, tmp_path):
    path = tmp_path / "scan.tif"
    path.write_bytes(encoded(noise(40, 30), "TIFF"))
    page.choose("#file", path)
    page.until(SHOWN)
    page.until("document.getElementById('after').naturalWidth === 40")
    page.until("document.getElementById('compare').classList.contains('single')")
    assert page.run("document.getElementById('download').download") == "scan-restored.png"


def test_a_key_is_asked_for_and_used(browser, settings_for, tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(encoded(noise()))
    with running(settings_for(api_keys="sesame")) as client:
        browser.open(str(client.base_url))
        browser.choose("#file", path)
        browser.until(TOLD)
        assert not browser.run("document.getElementById('key-label').hidden")
        browser.run("document.getElementById('key').value = 'sesame'")
        browser.run("document.getElementById('again').click()")
        browser.until(SHOWN)


@pytest.mark.parametrize("width", [320, 390, 1100])
def test_nothing_sticks_out_at_any_width(page, client, portrait, width):
    page.open(str(client.base_url), width, 800)
    page.choose("#file", portrait)
    page.until(SHOWN)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_dark_and_light_differ(page, client):
    grounds = []
    for dark in (False, True):
        page.open(str(client.base_url), dark=dark)
        grounds.append(page.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_the_page_breaks_no_policy_and_throws_nothing(page, portrait):
    page.choose("#file", portrait)
    page.until(SHOWN)
    page.until("document.getElementById('before').naturalWidth === 300")
    assert page.complaints == []
    page.run("fetch('https://example.org').catch(() => 0)")  # and the policy is in force
    assert "Content Security Policy" in page.complaints[0]
