"""`python -m serving.probe`: exit 0 if the service on this machine is alive; for a container's health check.

With `--ready` it asks /readyz instead. Only the standard library is imported, so that it is quick.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request


def probe(path: str, port: int, timeout_s: float = 2.0) -> bool:
    """Whether GET `path` on this machine answers with 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    wanted = "/readyz" if "--ready" in sys.argv[1:] else "/healthz"
    sys.exit(0 if probe(wanted, int(os.environ.get("DEBLUR_PORT", "8000"))) else 1)
