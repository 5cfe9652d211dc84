# The gateway's image. Build it with
#   docker build --build-arg VERSION="$(git describe --always --dirty)" -t pdrouter .
# or make image, which does the same; make image-multiarch builds it for amd64 and arm64. VERSION is what pdrouter version prints.
# The commands of the stages build and nixl are run by a test (cmd/pdrouter/image_test.go), which is why they name
# no absolute path. The base images are named by tag and digest; make pin-images takes the digests of today.

FROM golang:1.26-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
# Without cgo, yet linked dynamically: the binary opens NIXL's library at run time. The context has no .git.
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-X main.release=$VERSION" -o pdrouter ./cmd/pdrouter

# NIXL comes from its wheel; nixl.lock has the version and the hashes. Only the C library is used of it.
FROM python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3 AS nixl
WORKDIR /nixl
COPY internal/deps/nixl.sh internal/deps/nixl.lock internal/deps/wheel.sh internal/deps/
RUN internal/deps/nixl.sh

FROM debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251
# What NIXL's library needs beside glibc and what its wheel brings.
RUN apt-get update \
	&& apt-get install -y --no-install-recommends ca-certificates libgcc-s1 libssl3 libstdc++6 zlib1g \
	&& rm -rf /var/lib/apt/lists/*
COPY --from=nixl /nixl/.deps/nixl /opt/nixl
COPY --from=build /src/pdrouter /usr/local/bin/pdrouter
ARG VERSION=
LABEL org.opencontainers.image.title="pdrouter" \
	org.opencontainers.image.description="A gateway for LLM inference engines whose prefill and decode run on different engines" \
	org.opencontainers.image.version="$VERSION"
ENV PDROUTER_NIXL_LIB=/opt/nixl
USER 65532:65532
# Clients, agents, operations: the ports of the Helm chart.
EXPOSE 8080 8081 9090
ENTRYPOINT ["/usr/local/bin/pdrouter", "serve"]
CMD ["-c", "/etc/pdrouter/config/pdrouter.yaml"]
