# All that `make figures` and `make test` need, so that they run without the network: docs/without_make.md says how.
FROM python:3.11-slim-bookworm AS tools
# git: figures name the commit that made them. gcc, libc6-dev: tests compile what stands in for a GPU's driver.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc git libc6-dev make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home reader \
    && install --directory --owner=reader /bppsa-nb
USER reader
WORKDIR /bppsa-nb

FROM tools
COPY --chown=reader . .
RUN make .venv/.installed
CMD ["make", "help"]
