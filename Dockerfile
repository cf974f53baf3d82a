# A Shoal node in a container, in stages: what runs has no compiler, and a new Shoal is a small layer over its dependencies.
#
#   docker build -t shoal .                                                   torch with the libraries for NVIDIA GPUs
#   docker build -t shoal --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's index for CPUs> .      much smaller, CPU only
#
# That index is the address after --index-url in the command that PyTorch's install page shows for the platform CPU.
# pip prefers a build that is marked "+cpu" wherever it finds one, be it that index or a folder of PIP_FIND_LINKS.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS dependencies
# The headers of a Python that comes from the distribution are in a package of their own.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential libgmp-dev \
    && { find "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" -name Python.h | grep -q . \
        || apt-get install -y --no-install-recommends python3-dev; } \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /opt/shoal
ENV PATH=/opt/shoal/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt ./
ARG PIP_EXTRA_INDEX_URL=
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt

FROM dependencies AS wheel
COPY README.md LICENSE ./
COPY protocol protocol
COPY dht dht
COPY node node
COPY src src
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 shoal \
    && useradd --uid 10001 --gid shoal --home-dir /var/lib/shoal --shell /usr/sbin/nologin shoal \
    && install -d -o shoal -g shoal -m 700 /var/lib/shoal /run/shoal
ENV PATH=/opt/shoal/bin:$PATH SHOAL_HOME=/run/shoal/home PYTHONUNBUFFERED=1
COPY --from=dependencies /opt/shoal /opt/shoal
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY deploy/own-home /usr/local/bin/own-home
COPY examples /opt/shoal/examples
USER shoal
WORKDIR /var/lib/shoal
# Keys, votes and addresses; a volume that several containers share gives each a folder of its own.
VOLUME /var/lib/shoal
EXPOSE 4101 4102 4180
HEALTHCHECK --interval=10s --timeout=20s --start-period=90s --retries=6 CMD ["shoal", "status", "--exit-code"]
ENTRYPOINT ["own-home", "/var/lib/shoal", "shoal"]
CMD ["node", "start", "--foreground"]
