# A Perdure worker. Mount your tools and agents, and name them: PERDURE_TOOLS=my.module PERDURE_AGENTS=/app/agents
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY perdure perdure
COPY workflows workflows
COPY activities activities
RUN pip install -c constraints.txt '.[mcp]' && useradd --create-home perdure

USER perdure
CMD ["perdure", "worker"]
