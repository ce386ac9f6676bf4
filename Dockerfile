# tokpack with all that encode, stores, tables and pages need; for training add [train].
#
#   docker build -t tokpack .
#   docker run --rm -v "$PWD:/data" tokpack encode wiki.jsonl.zst
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/tokpack-*.whl)[chat,hf,parquet,select,ftfy,sentencepiece,remote,view]" \
    && rm -r /wheels
WORKDIR /data
ENTRYPOINT ["tokpack"]
