# One image for web, scheduler and node: its command says which of them a container is. Context: a clone.
#
#   docker build --tag dockyard .

FROM node:22-trixie-slim AS front-end
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY static static
RUN npm run build

FROM python:3.13-slim-trixie AS packages
RUN python -m venv /opt/venv
COPY requirements.txt .
# Afterwards without what only installs: nothing in a container installs anything.
RUN /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.txt \
    && /opt/venv/bin/pip uninstall --yes --quiet pip

FROM python:3.13-slim-trixie
# iptables: the node keeps jobs away from the host with it. postgresql-client: pg_dump and pg_restore for back-ups.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iptables postgresql-client-17 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 dockyard \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/dockyard --no-create-home --shell /usr/sbin/nologin dockyard
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY . .
COPY --from=front-end /app/static/dist static/dist
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DOCKYARD_IMAGE=1 \
    DOCKYARD_ENV_FILE=/etc/dockyard/env \
    DATA_DIR=/var/lib/dockyard/data \
    STATIC_ROOT=/app/staticroot
# Static files are of this version, so they are in its image. What is collected needs no settings; its key is thrown away.
RUN DATA_DIR=/tmp/build python manage.py collectstatic --no-input --verbosity 0 \
    && rm -rf /tmp/build \
    && python -m compileall -q portal gpus jobs
USER dockyard
EXPOSE 8000
ENTRYPOINT ["/app/deploy/compose/start"]
CMD ["web"]
