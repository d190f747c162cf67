# One image for every role: docker run … IMAGE worker segmenter. How to use it: docs/how-to/kubernetes.md
# To pin the base, give it by digest: --build-arg BASE=python@sha256:…
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/afterword
ENV PATH=/opt/afterword/bin:$PATH
WORKDIR /src
COPY requirements-image.lock requirements-build.lock ./
# On x86-64 everything is a wheel. On arm64 faust-streaming is not: it installs as pure Python, since there is no compiler.
# tools/wheels.py sees to it that nothing else lacks one. Its build backend, and ours, is locked too.
RUN pip install --no-compile --require-hashes --only-binary :all: --target /tools -r requirements-build.lock \
 && PYTHONPATH=/tools pip install --no-compile --require-hashes --no-build-isolation --ignore-installed -r requirements-image.lock
COPY . .
ARG REVISION=unknown
# The build fetches nothing; neither its backend nor pip is needed to run. Bytecode
# is kept only for what is really imported, since the image is read-only where it runs; for everything it would be 30 MB.
RUN AFTERWORD_REVISION=${REVISION} PYTHONPATH=/tools \
    pip install --no-compile --no-deps --no-build-isolation ./distributions/text ./distributions/engine . && pip uninstall --quiet --yes setuptools pip \
 && find /opt/afterword/lib -type d -name tests -prune -exec rm -r {} + \
 && find /opt/afterword/lib -regextype egrep -regex '.*\.(c|cpp|h|pyx|pxd|pyi|a)' -delete
WORKDIR /opt/afterword
RUN python3 -m compileall -q lib/python3*/site-packages/afterword lib/python3*/site-packages/afterword_text lib/python3*/site-packages/faust_eos \
 && python3 -c 'import afterword.streams.summarizer.agent, afterword.streams.archiver.agent, afterword.cli, afterword.operating.audit, afterword.operating.checks' \
 && mkdir /state

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Afterword" \
      org.opencontainers.image.description="Long-term memory for chat assistants, from the Kafka topic their messages are on" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/afterword /opt/afterword
# The only place that is written to, and what is there may be lost
COPY --from=build --chown=10001:10001 /state /var/lib/afterword
ENV PATH=/opt/afterword/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AFTERWORD_STATE_DIR=/var/lib/afterword/state \
    AFTERWORD_HEALTH__HOST=0.0.0.0 \
    AFTERWORD_HEALTH__PORT=8080
# By number, so that Kubernetes can see that it is not root
USER 10001:10001
WORKDIR /var/lib/afterword
VOLUME ["/var/lib/afterword"]
EXPOSE 8080
# Alive, not ready: whoever restarts what is unhealthy must not restart a worker because MongoDB is away
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python3", "-c", \
  "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"AFTERWORD_HEALTH__PORT\"]}/livez', timeout=4)"]
ENTRYPOINT ["afterword"]
CMD ["--help"]
