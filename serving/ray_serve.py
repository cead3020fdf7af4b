"""The service on Ray Serve, with the same contract: `serve run serving.ray_serve:app`.

Each replica is one service with its own model, queue and settings (`DEBLUR_*`); Ray Serve starts replicas, routes
requests to them and starts again those that die. Needs the extra `face-deblur[ray,serve]`. Change the number of
replicas or their resources with a Serve config file, or here.
"""

from typing import Any

from ray import serve

from serving.app import create_app


def _application() -> Any:
    return create_app()


@serve.deployment(
    name="deblur",
    num_replicas=1,
    max_ongoing_requests=512,  # admission is the service's own: it answers 503 with Retry-After
    ray_actor_options={"num_cpus": 1},
    graceful_shutdown_timeout_s=30,
)
@serve.ingress(_application)
class Deblur:
    """A replica: all of its routes are those of the service."""


app = Deblur.bind()  # type: ignore[attr-defined]
