# A CPU image with the newest release of sglang and the one that `make fuzz` finds a known bug in. Untested: no builder was
# at hand. docker build --build-arg PIP_FLAGS="--extra-index-url URL" -t eagleeye . && docker run --rm eagleeye hunt
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ git make && rm -rf /var/lib/apt/lists/*
# Where pip finds CPU builds of torch, as in `make help`.
ARG PIP_FLAGS=""
WORKDIR /eagleeye
COPY . .
RUN make setup PIP_FLAGS="$PIP_FLAGS" && .venv/bin/eagleeye install $(.venv/bin/eagleeye facts --releases hunt)
ENV PATH=/eagleeye/.venv/bin:$PATH
ENTRYPOINT ["eagleeye"]
