# syntax=docker/dockerfile:1
# The gateway with its hot path compiled (docs/how-to/compile-it.md). All that is installed has a version and a hash.
#
#   docker build --tag warmroute .
#   docker run --rm --read-only --publish 8000:8000 warmroute serve --worker http://gpu1:8000
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
# A base that has a compiler needs no packages. The compiler does not reach the image, so it has no version here.
# hadolint ignore=DL3008
RUN command -v gcc >/dev/null \
    || (apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*)
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --requirement requirements.lock \
    && /opt/build/bin/pip install --require-hashes --requirement requirements-build.lock \
    && python3 -m venv /opt/warmroute \
    && /opt/warmroute/bin/pip install --require-hashes --requirement requirements.lock
COPY . .
RUN HATCH_BUILD_HOOK_ENABLE_MYPYC=1 /opt/build/bin/hatchling build --target wheel --directory /wheels \
    && /opt/warmroute/bin/pip install --no-deps --no-index /wheels/*.whl \
    && /opt/warmroute/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
LABEL org.opencontainers.image.title="Warmroute" \
      org.opencontainers.image.description="OpenAI-compatible gateway that routes each request to the vLLM worker already holding its prefix" \
      org.opencontainers.image.licenses="Apache-2.0"
# Saved changes of the admin API (state_dir) and tokenizer files from the hub (huggingface) lie in the home folder: mount a
# volume at each to keep them. A new volume gets the folder's owner.
RUN groupadd --gid 10001 warmroute \
    && useradd --uid 10001 --gid 10001 --create-home --home-dir /var/lib/warmroute --shell /usr/sbin/nologin warmroute \
    && install --directory --owner=10001 --group=10001 /var/lib/warmroute/huggingface
COPY --from=build /opt/warmroute /opt/warmroute
ENV PATH=/opt/warmroute/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/var/lib/warmroute \
    HF_HOME=/var/lib/warmroute/huggingface
WORKDIR /var/lib/warmroute
USER 10001:10001
EXPOSE 8000 8001
# /livez of the admin port: a gateway that waits for its workers is healthy. Readiness is /readyz.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8001/livez', timeout=2)"]
ENTRYPOINT ["warmroute"]
CMD ["serve"]
