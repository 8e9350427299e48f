# The gateway without torch: what the built-in encoders need is in the image, and nothing is downloaded when it runs.
# With --build-arg SLIM=0 named sentence-transformers models work too, at the price of torch's size.

FROM python:3.11-slim AS build
ARG SLIM=1
ARG TORCH=2.13.0
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN python -m venv /opt/hermes
ENV PATH=/opt/hermes/bin:$PATH
WORKDIR /src
COPY requirements/*.lock requirements/
RUN pip install --require-hashes --no-deps --only-binary :all: -r requirements/pip.lock \
    && if [ "$SLIM" != 1 ]; then \
      pip install --only-binary :all: "torch==$TORCH" \
      && pip install --require-hashes --no-deps --only-binary :all: -r requirements/models.lock; \
    fi \
    && pip install --require-hashes --no-deps --only-binary :all: -r requirements/base.lock
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN groupadd --gid 10001 hermes \
    && useradd --uid 10001 --gid hermes --no-create-home --shell /usr/sbin/nologin hermes \
    && install -d -o hermes -g hermes /srv/hermes /srv/hermes/data
COPY --from=build /opt/hermes /opt/hermes
WORKDIR /srv/hermes
COPY config config
COPY routes routes
COPY plugins plugins
ENV PATH=/opt/hermes/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER hermes
VOLUME /srv/hermes/data
EXPOSE 8080
# SIGTERM lets the turns in flight end (server.drain_s).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
# Listening beyond the loopback asks for a key: GATEWAY_ADMIN_KEY, or keys in config/gateway.yaml.
ENTRYPOINT ["hermes-gateway"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
