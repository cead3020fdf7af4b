"""The HTTP contract, against the real engine."""

import base64
import re
import threading

import numpy as np
import pytest
from PIL import Image

from deblur.cli import main
from tests.serving.support import encoded, noise, opened, running

HEADERS = (
    "X-Request-ID",
    "X-Model-Version",
    "X-Faces-Before",
    "X-Faces-After",
    "X-Detection-Confidence-Before",
    "X-Detection-Confidence-After",
    "Server-Timing",
)


def post(client, content, query="mode=whole", content_type="image/png", **headers):
    headers = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return client.post(f"/deblur?{query}", content=content, headers=headers)


def problem(reply, status, code):
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"] == "application/problem+json"
    body = reply.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"].endswith(code)
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == reply.headers["X-Request-ID"]
    return body


# The picture


def test_raw_body_and_form_give_the_same_restored_picture(client):
    content = encoded(noise(70, 50))
    raw = post(client, content)
    form = client.post("/deblur?mode=whole", files={"file": ("x.gif", content, "text/plain")})
    assert raw.status_code == form.status_code == 200
    assert raw.content == form.content
    restored = np.asarray(opened(raw.content)).astype(int)
    given = np.asarray(noise(70, 50)).astype(int)
    assert restored.shape == given.shape
    assert 0 < np.abs(restored - given).max() < 60  # the tiny generator changes it a little


def test_the_reply_equals_the_librarys(client, weights):
    import deblur

    picture = np.asarray(noise(90, 61, seed=3))
    restorer = deblur.load(weights, device="cpu", precision="fp32")
    expected = restorer.restore(picture, mode="whole").image
    got = np.asarray(opened(post(client, encoded(Image.fromarray(picture))).content))
    assert np.abs(got.astype(int) - expected).max() <= 1


def test_headers_tell_the_quality_metric(client):
    reply = post(client, encoded(noise()), X_Request_ID="abc-1.2_3")
    assert all(name in reply.headers for name in HEADERS)
    assert reply.headers["X-Request-ID"] == "abc-1.2_3"
    assert re.fullmatch(r"tiny@[0-9a-f]{12}", reply.headers["X-Model-Version"])
    assert reply.headers["X-Faces-Before"] == reply.headers["X-Faces-After"] == "0"
    assert float(reply.headers["X-Detection-Confidence-After"]) == 0
    assert reply.headers["Vary"] == "Accept"
    assert reply.headers["Cache-Control"] == "no-store"
    assert re.search(r"infer;dur=\d", reply.headers["Server-Timing"])


@pytest.mark.parametrize("offered", ["", "a" * 65, "a b", "a\tb", "<script>", "ä"])
def test_a_request_id_that_is_not_plain_is_replaced(client, offered):
    reply = client.get("/healthz", headers={"X-Request-ID": offered.encode("latin-1")})
    assert re.fullmatch(r"[0-9a-f]{32}", reply.headers["X-Request-ID"])


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF", "BMP"])
def test_the_inputs_own_family_is_the_default(client, format):
    reply = post(client, encoded(noise(), format))
    assert reply.headers["Content-Type"] == f"image/{format.lower()}"
    assert opened(reply.content).format == format


@pytest.mark.parametrize(
    ("query", "accept", "expected"),
    [
        ("", "image/webp", "WEBP"),
        ("", "image/jpeg;q=0.3, image/png;q=0.4", "PNG"),
        ("&format=jpeg", "image/png", "JPEG"),
        ("&format=tiff", None, "TIFF"),
    ],
)
def test_format_and_accept_choose_another(client, query, accept, expected):
    headers = {"Accept": accept} if accept else {}
    reply = post(client, encoded(noise(), "JPEG"), f"mode=whole{query}", **headers)
    assert opened(reply.content).format == expected


def test_a_gif_comes_back_as_png_with_a_warning_in_the_report(client):
    frames = [noise(seed=i).convert("P") for i in range(3)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert opened(post(client, content).content).format == "PNG"
    assert post(client, content, Accept="application/json").json()["picture"]["warnings"]


def test_alpha_survives(client):
    alpha = np.arange(64 * 48, dtype=np.uint32).reshape(48, 64).astype(np.uint8)
    picture = noise()
    picture.putalpha(Image.fromarray(alpha))
    restored = opened(post(client, encoded(picture)).content)
    assert np.array_equal(np.asarray(restored.getchannel("A")), alpha)


def test_no_face_in_mode_faces_gives_the_picture_back_byte_equal(client):
    content = encoded(noise())
    reply = post(client, content, "mode=faces")
    assert reply.status_code == 200
    assert np.array_equal(np.asarray(opened(reply.content)), np.asarray(noise()))


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (19, 19), (12, 300), (257, 31)])
def test_odd_sizes_come_back_in_their_size(client, size):
    for mode in ("auto", "whole"):
        reply = post(client, encoded(noise(*size)), f"mode={mode}")
        assert reply.status_code == 200
        assert opened(reply.content).size == size


# The report


def test_the_report_has_the_picture_only_when_asked(client):
    content = encoded(noise(66, 44))
    plain = post(client, content, Accept="application/json")
    assert plain.headers["Content-Type"] == "application/json"
    report = plain.json()
    assert report["image"] is None
    assert report["picture"] == {"width": 66, "height": 44, "source_format": "PNG", "warnings": []}
    assert report["mode"] == report["done"] == "whole"
    assert report["model"]["version"] == plain.headers["X-Model-Version"]
    assert set(report["timings_ms"]) >= {"read", "decode", "detect", "wait", "infer", "finish"}
    with_image = post(client, content, "mode=whole&image=true&format=webp", Accept="application/json").json()
    head, body = with_image["image"].split(",")
    assert head == "data:image/webp;base64"
    assert opened(base64.b64decode(body)).size == (66, 44)


def test_a_picture_becomes_text_on_the_pools_threads(client, monkeypatch):
    real, threads = base64.b64encode, []

    def watched(content):
        threads.append(threading.current_thread().name)
        return real(content)

    monkeypatch.setattr("serving.routes.base64.b64encode", watched)
    reply = post(client, encoded(noise(40, 30)), "mode=whole&image=true", Accept="application/json")
    assert reply.json()["request_id"] == reply.headers["X-Request-ID"]
    assert len(threads) == 1
    assert threads[0].startswith("codec")  # not the event loop, which has probes to answer


@pytest.mark.parametrize("backend", ["torch", "graphs"])
def test_a_backend_of_torch_gives_the_same_picture(client, settings_for, backend):
    content = encoded(noise(60, 50))
    with running(settings_for(backend=backend)) as other:
        same = opened(post(other, content).content)
    assert np.array_equal(np.asarray(same), np.asarray(opened(post(client, content).content)))


@pytest.mark.parametrize("backend", ["auto", "onnx", "openvino"])
def test_an_exported_generator_is_served(client, settings_for, weights, tmp_path, backend):
    for needed in (
        "onnx",
        "onnxscript",
        "onnxruntime" if backend == "auto" else backend.replace("onnx", "onnxruntime"),
    ):
        pytest.importorskip(needed)
    path = tmp_path / "tiny.onnx"
    assert main(["export", "--onnx", str(path), "--weights", str(weights)]) == 0
    content = encoded(noise(60, 50))
    with running(settings_for(weights=str(path), backend=backend)) as other:
        reply = post(other, content)
        assert [replica.owner.lanes for replica in other.app.state.service.fleet.replicas] == [1]
    assert reply.headers["X-Model-Version"].startswith("tiny@")
    made, expected = (np.asarray(opened(r.content)).astype(int) for r in (reply, post(client, content)))
    assert np.abs(made - expected).max() <= 1
    assert not np.array_equal(made, np.asarray(noise(60, 50)))


# Refusals


def test_bodies_that_are_no_pictures(client):
    problem(post(client, b""), 400, "empty-body")
    problem(client.post("/deblur", files={"picture": b"abc"}), 400, "bad-multipart")
    problem(post(client, b"abc", content_type="text/plain"), 415, "unsupported-media-type")
    problem(post(client, b"hello, I am text"), 415, "unsupported-media-type")
    problem(post(client, encoded(noise())[:-40]), 422, "corrupt-picture")
    problem(post(client, encoded(noise(200, 200), "JPEG")[:900]), 422, "corrupt-picture")


def test_a_bomb_is_refused_from_its_header(client):
    bomb = encoded(Image.new("1", (20000, 20000)))
    assert len(bomb) < 100_000
    body = problem(post(client, bomb), 422, "too-many-pixels")
    assert "20000" in body["detail"]


def test_frames_of_an_animation_are_summed(settings_for):
    frames = [noise(100, 100, seed=i) for i in range(5)]
    content = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    with running(settings_for(max_pixels=49_999)) as client:
        problem(post(client, content), 422, "too-many-pixels")
        assert post(client, encoded(noise(100, 100))).status_code == 200


def test_too_many_bytes(settings_for):
    with running(settings_for(max_body_bytes=2000)) as client:
        body = problem(post(client, b"x" * 2001), 413, "body-too-large")
        assert body["max_bytes"] == 2000
        problem(client.post("/deblur", files={"file": b"x" * 2001}), 413, "body-too-large")


@pytest.mark.parametrize("query", ["mode=best", "format=gif", "image=perhaps", "mode="])
def test_bad_parameters(client, query):
    body = problem(post(client, encoded(noise()), query), 422, "invalid-parameter")
    assert body["errors"][0]["where"].startswith("query.")


def test_what_cannot_be_produced(client):
    problem(post(client, encoded(noise()), Accept="text/html"), 406, "not-acceptable")


def test_a_format_that_cannot_hold_the_picture_is_406(client):
    wide = encoded(Image.new("RGB", (17000, 2)))
    body = problem(post(client, wide, "mode=faces&format=webp"), 406, "not-acceptable")
    assert "16383" in body["detail"]


def test_the_frameworks_own_errors_are_problems_too(client):
    problem(client.get("/nothing"), 404, "not-found")
    reply = client.get("/deblur")
    problem(reply, 405, "method-not-allowed")
    assert reply.headers["Allow"] == "POST"
    problem(client.get("/web/../settings.py"), 404, "not-found")


def test_an_unexpected_failure_is_a_500_that_tells_nothing(client, monkeypatch):
    service = client.app.state.service

    async def broken(*args, **kwargs):
        raise KeyError("secret detail")

    monkeypatch.setattr(service.pipeline, "run", broken)
    body = problem(post(client, encoded(noise())), 500, "internal")
    assert "secret" not in str(body)
    assert service.admission.requests == 0


# Keys, headers, CORS


def test_keys(settings_for):
    with running(settings_for(api_keys="alpha,beta")) as client:
        content = encoded(noise())
        reply = post(client, content)
        problem(reply, 401, "unauthorized")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        problem(post(client, content, X_API_Key="alpha2"), 401, "unauthorized")
        problem(post(client, content, X_API_Key="ä".encode("latin-1")), 401, "unauthorized")
        assert post(client, content, X_API_Key="alpha").status_code == 200
        assert post(client, content, Authorization="Bearer beta").status_code == 200
        assert client.get("/healthz").status_code == 200
        assert "401" in client.get("/openapi.json").json()["paths"]["/deblur"]["post"]["responses"]


def test_every_reply_has_security_headers_and_the_page_a_policy(client):
    for reply in (client.get("/healthz"), client.get("/nothing"), post(client, encoded(noise()))):
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'")
    page = client.get("/")
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]


def test_cors_is_off_unless_set(client, settings_for):
    origin = {"Origin": "https://example.org"}
    assert "Access-Control-Allow-Origin" not in client.get("/healthz", headers=origin).headers
    with running(settings_for(cors_origins="https://example.org")) as open_client:
        reply = open_client.get("/healthz", headers=origin)
        assert reply.headers["Access-Control-Allow-Origin"] == "https://example.org"
        other = open_client.get("/healthz", headers={"Origin": "https://elsewhere.org"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_the_page_can_be_turned_off(settings_for):
    with running(settings_for(web=False)) as client:
        problem(client.get("/"), 404, "not-found")
        problem(client.get("/web/app.js"), 404, "not-found")


# Probes and metrics


def test_probes(client):
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/web/app.js"])
def test_head_is_get_without_the_body(client, path):
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["Content-Length"] == get.headers["Content-Length"]
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_metrics_tell_traffic_and_quality(settings_for):
    with running(settings_for()) as client:
        for _ in range(3):
            post(client, encoded(noise(40, 30)))
        post(client, b"nothing like a picture")
        text = client.get("/metrics").text
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert values['deblur_requests_total{code="200",method="POST",route="/deblur"}'] == 3
    assert values['deblur_requests_total{code="415",method="POST",route="/deblur"}'] == 1
    assert values['deblur_rejected_total{reason="unsupported-media-type"}'] == 1
    assert values["deblur_pixels_total"] == 3 * 40 * 30
    assert values['deblur_detection_confidence_count{when="before"}'] == 3
    assert values['deblur_faces_total{when="after"}'] == 0
    assert values["deblur_batch_items_count"] >= 1
    assert values["deblur_ready"] == 1
    assert values["deblur_queue_requests"] == values["deblur_queue_pixels"] == values["deblur_queue_bytes"] == 0
    for stage in ("decode", "detect", "wait", "infer", "finish", "encode"):
        assert values[f'deblur_stage_seconds_count{{stage="{stage}"}}'] == 3
    assert "deblur_model{" in text
