"""The description of the interface: complete, and true."""

import json

import pytest

from tests.serving.support import encoded, noise, running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


@pytest.fixture(scope="module")
def described(client):
    return client.get("/openapi.json").json()


def test_the_description_is_complete(described):
    assert set(described["paths"]) == {"/deblur", "/healthz", "/readyz", "/metrics"}
    post = described["paths"]["/deblur"]["post"]
    assert {p["name"] for p in post["parameters"]} == {"mode", "format", "image"}
    assert set(post["requestBody"]["content"]) >= {"multipart/form-data", "image/png", "image/*"}
    assert set(post["responses"]) == {"200", "400", "406", "408", "413", "415", "422", "500", "503", "504"}
    assert set(post["responses"]["200"]["content"]) >= {"image/png", "image/jpeg", "application/json"}
    assert "X-Faces-After" in post["responses"]["200"]["headers"]
    assert "Retry-After" in post["responses"]["503"]["headers"]
    for status, response in post["responses"].items():
        if status != "200":
            assert list(response["content"]) == ["application/problem+json"]
            assert response["content"]["application/problem+json"]["examples"]


def test_every_reference_leads_somewhere(described):
    text = json.dumps(described)
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.split('"')[0] in described["components"]["schemas"]


def test_no_page_of_the_framework_that_loads_scripts_from_elsewhere(client):
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


@pytest.mark.slow
def test_schemathesis_finds_nothing(settings_for):
    from hypothesis import HealthCheck, settings
    from hypothesis import strategies as st
    from schemathesis.checks import load_all_checks

    load_all_checks()
    pictures = st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["PNG", "JPEG", "WEBP"])).map(
        lambda drawn: encoded(noise(drawn[0], drawn[1]), drawn[2])
    )
    for media in ("image/png", "image/jpeg", "image/webp", "image/*"):
        schemathesis.openapi.media_type(media, pictures)
    with running(settings_for(max_pixels=10_000)) as client:
        base = str(client.base_url).rstrip("/")
        config = schemathesis.Config()
        schema = schemathesis.openapi.from_url(f"{base}/openapi.json", config=config)
        tried = []
        for result in schema.get_all_operations():
            operation = result.ok()

            @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            @schemathesis_given(operation)
            def check(case):
                tried.append(case.operation.path)
                case.call_and_validate(base_url=base, timeout=60)

            check()
        assert set(tried) == {"/deblur", "/healthz", "/readyz", "/metrics"}


def schemathesis_given(operation):
    from hypothesis import given

    return given(case=operation.as_strategy())
