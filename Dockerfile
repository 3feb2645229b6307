# A Perdure worker. Mount your tools, agents and perdure.toml into /app, or build on this image and copy them there:
#
#   docker build -t perdure-worker .
#   docker run --rm -e TEMPORAL_ADDRESS=… -e OPENAI_API_KEY=… -v ./agents:/app/agents:ro perdure-worker
#
# The Python is the one that the suite runs on, the packages are those of constraints.txt.
ARG PYTHON_VERSION=3.11
FROM python:${PYTHON_VERSION}-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/perdure
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY perdure perdure
COPY workflows workflows
COPY activities activities
RUN /opt/perdure/bin/pip install -c constraints.txt '.[a2a,agui,anthropic,bedrock,encryption,evals,mcp,notify,oidc,otel,postgres,s3]'

FROM python:${PYTHON_VERSION}-slim

ENV PATH=/opt/perdure/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PERDURE_WAIT=60 \
    PERDURE_HEALTH_PORT=8080 \
    PERDURE_LOG_FORMAT=json
COPY --from=build /opt/perdure /opt/perdure
RUN useradd --uid 10001 --no-create-home perdure
USER 10001
WORKDIR /app

EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/livez', timeout=4)"]
CMD ["perdure", "worker"]
