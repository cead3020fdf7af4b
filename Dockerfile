# syntax=docker/dockerfile:1
# The service, with its weights inside, for CPUs (the default target) or NVIDIA GPUs:
#   docker build -t face-deblur .
#   docker build -t face-deblur:cuda --target cuda .
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv /venv
COPY pyproject.toml deploy/install.sh deploy/requirements.py ./
# From here on: what changes least comes first, so that a change of the code rebuilds the last, small layer alone.

FROM build AS build-cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip sh install.sh /venv torch
RUN --mount=type=cache,target=/root/.cache/pip sh install.sh /venv dependencies
COPY README.md LICENSE ./
COPY deblur ./deblur
RUN sh install.sh /venv package

FROM build AS build-cuda
# The CUDA libraries come with torch from PyPI; the host needs the driver and the NVIDIA container toolkit alone.
ARG TORCH_INDEX=
RUN --mount=type=cache,target=/root/.cache/pip sh install.sh /venv torch
RUN --mount=type=cache,target=/root/.cache/pip sh install.sh /venv dependencies
COPY README.md LICENSE ./
COPY deblur ./deblur
RUN sh install.sh /venv package

FROM python:${PYTHON} AS runtime
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin deblur
WORKDIR /app
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DEBLUR_HOST=0.0.0.0 \
    DEBLUR_PORT=8000
EXPOSE 8000
USER 10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-m", "serving.probe"]
ENTRYPOINT ["python", "-m", "serving"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /venv /venv
COPY serving /app/serving

FROM runtime AS cpu
COPY --from=build-cpu /venv /venv
COPY serving /app/serving
