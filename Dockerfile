# Two images from one file:
#
#   service   the server and its commands; not root, data in /data, settings by environment
#   spark     pyspark and pyarrow, and no line of this project: a worker needs no more
#
# On a machine without a registry: docker build --build-arg BASE_IMAGE="$(docker/base.sh)" …
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS python
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
# Where pip looks is the builder's own affair: given from outside, or not at all.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST

# ---------------------------------------------------------------- service

# What it needs, apart from the project itself: a change of the code builds only the code.
FROM python AS needs
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/quiver
COPY pyproject.toml constraints.txt /src/
RUN python3 -c 'import tomllib; p = tomllib.load(open("/src/pyproject.toml", "rb"))["project"]; \
      print(*p["dependencies"], *p["optional-dependencies"]["server"], sep="\n")' > /src/needs.txt \
 && /opt/pip/bin/pip --python /opt/quiver/bin/python install --quiet \
      --constraint /src/constraints.txt --requirement /src/needs.txt \
 && rm -rf /opt/quiver/lib/python3*/site-packages/pyarrow/include \
           /opt/quiver/lib/python3*/site-packages/pyarrow/tests

FROM needs AS project
COPY README.md /src/
COPY quiver /src/quiver
COPY flight_service /src/flight_service
RUN /opt/pip/bin/pip --python /opt/quiver/bin/python install --quiet \
      --no-deps --prefix /opt/project /src

FROM python AS service
RUN groupadd --gid 10001 quiver \
 && useradd --uid 10001 --gid quiver --home-dir /data --no-create-home --shell /usr/sbin/nologin quiver \
 && install -d -o quiver -g quiver -m 0700 /data
ENV PATH=/opt/quiver/bin:$PATH \
    QUIVER_SERVER__ROOT=/data \
    QUIVER_SERVER__HOST=0.0.0.0 \
    QUIVER_HTTP__HOST=0.0.0.0
USER quiver
VOLUME /data
EXPOSE 8815 8816
STOPSIGNAL SIGTERM
# `quiver health`, by its short way in: it is asked every few seconds.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-m", "flight_service.health"]
ENTRYPOINT ["quiver"]
CMD ["serve", "--log", "json"]
COPY --from=needs /opt/quiver /opt/quiver
COPY --from=project /opt/project /opt/quiver

# ---------------------------------------------------------------- spark

FROM python AS spark
RUN apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless procps > /dev/null \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
# pandas is the driver's: pyspark asks for it there, for mapInArrow too.  Only a driver has
# /opt/driver in its PYTHONPATH.
RUN python3 -m venv /opt/spark \
 && /opt/spark/bin/pip install --quiet --constraint /tmp/constraints.txt pyspark pyarrow \
 && /opt/spark/bin/pip install --quiet --constraint /tmp/constraints.txt --target /opt/driver pandas \
 && ln -s /opt/spark/lib/python3*/site-packages/pyspark /opt/pyspark \
 && useradd --uid 10002 --create-home spark
ENV PATH=/opt/spark/bin:$PATH \
    SPARK_HOME=/opt/pyspark \
    SPARK_WORKER_DIR=/tmp/spark-work \
    PYSPARK_PYTHON=/opt/spark/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/spark/bin/python
USER spark
WORKDIR /home/spark
