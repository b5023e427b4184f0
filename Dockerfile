# Not built where this project is made: no registry of images can be reached from there.
#   docker build -t unskew .
#   docker run -p 127.0.0.1:8000:8000 -v /srv/unskew:/data unskew \
#     serve /data/current --store /data/events.db --host 0.0.0.0 --token-file /data/tokens
FROM python:3.11-slim

# A volume takes the owner of the folder that it covers.
RUN useradd --create-home --uid 10001 unskew && install --directory --owner unskew /data
WORKDIR /app
COPY pyproject.toml README.md requirements.lock ./
COPY src ./src
# torch first and by its exact version: anything else may pull gigabytes of other builds
RUN python -m pip install --no-cache-dir --constraint requirements.lock torch==2.13.0 \
    && python -m pip install --no-cache-dir --constraint requirements.lock ".[serve,postgres]"

USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["unskew"]
CMD ["serve", "/data/current", "--store", "/data/events.db", "--host", "0.0.0.0", "--token-file", "/data/tokens"]
