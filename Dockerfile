# The gateway's image. Build it with
#   docker build -t pdrouter .
# The steps of the stages build and nixl are run by a test (cmd/pdrouter/dockerfile_test.go), which is why they name
# no absolute path.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Without cgo, yet linked dynamically: the binary opens NIXL's library at run time.
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -o pdrouter ./cmd/pdrouter

# NIXL comes from its wheel; the script has the version and the checksum. Only the C library is used of it.
FROM python:3.12-slim-bookworm AS nixl
WORKDIR /nixl
COPY internal/deps/nixl.sh internal/deps/wheel.sh internal/deps/
RUN internal/deps/nixl.sh

FROM debian:bookworm-slim
# What NIXL's library needs beside glibc and what its wheel brings.
RUN apt-get update \
	&& apt-get install -y --no-install-recommends ca-certificates libgcc-s1 libssl3 libstdc++6 zlib1g \
	&& rm -rf /var/lib/apt/lists/*
COPY --from=nixl /nixl/.deps/nixl /opt/nixl
COPY --from=build /src/pdrouter /usr/local/bin/pdrouter
ENV PDROUTER_NIXL_LIB=/opt/nixl
USER 65532:65532
# Clients, agents, operations: the ports of the manifests in configs/kubernetes.
EXPOSE 8080 8081 9090
ENTRYPOINT ["/usr/local/bin/pdrouter", "serve"]
CMD ["-c", "/etc/pdrouter/config/pdrouter.yaml"]
