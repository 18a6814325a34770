# The agent, and `dial-agent core-config` for DIAL Core. Behind a package mirror:
# docker build --build-arg PIP_INDEX_ARGS="--index-url https://mirror.example/simple" .

# The search in documents takes 5.2 GB of the image, with torch from TORCH_INDEX 1.1 GB: the address of an index with
# torch's CPU builds.

FROM python:3.11-slim AS build
ARG PIP_INDEX_ARGS=""
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# The embedding process has an environment of its own, whose large packages are a layer that seldom changes.
COPY task/embedding/requirements.txt embedding.txt
RUN python -m venv /opt/embedding \
 && if [ -n "${TORCH_INDEX}" ]; then /opt/embedding/bin/pip install --no-deps --index-url "${TORCH_INDEX}" "$(sed -n 's/^\(torch==[^;]*\).*/\1/p' embedding.txt)"; fi \
 && /opt/embedding/bin/pip install ${PIP_INDEX_ARGS} --requirement embedding.txt
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# The dependencies are a layer of their own, so that a change of the code does not install them again.
COPY locks/image.txt ./
# The extras are in the image, so that every profile of docker-compose.yml works with it.
RUN pip install ${PIP_INDEX_ARGS} --require-hashes --requirement image.txt
COPY pyproject.toml README.md LICENSE setup.py docker-compose.yml .env.example ./
COPY compose compose
COPY core_config core_config
COPY kubernetes kubernetes
COPY observability observability
COPY task task
COPY mcp_servers mcp_servers
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends tesseract-ocr tini && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1001 --create-home --shell /usr/sbin/nologin agent \
 && install -d -o agent -g agent /app /data /opt/config
COPY --from=build /opt/embedding /opt/embedding
COPY --from=build /opt/venv /opt/venv
COPY core_config /app/core_config
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYDANTIC_V2=True \
    AGENT_HOST=0.0.0.0 \
    AGENT_DATA_DIR=/data \
    AGENT_RAG__PYTHON=/opt/embedding/bin/python
WORKDIR /app
USER agent
EXPOSE 5030
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=12 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5030/health', timeout=4).close()"]
CMD ["dial-agent", "serve"]
