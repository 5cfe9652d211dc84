#!/bin/sh
# Packs what a machine with vLLM and no network needs to try the connector: the gateway, the connector as a wheel and
# unpacked, NIXL as nixl-pack.sh has it, a small model, and what starts and asks engines (kvplane/vllm/bundle). Needs go,
# readelf, bin/libpdkv.so's wheel (make wheel) and, for the model, vLLM as internal/deps/vllm.sh installs it; no GPU.
#
# usage: vllm-bundle.sh [DIRECTORY]    makes DIRECTORY (default bin/vllm-bundle) and DIRECTORY.tar.gz
set -eu

cd "$(dirname "$0")/../.."
to=${1:-bin/vllm-bundle}
python=${PYTHON:-.deps/vllm/bin/python}
most=96 # MiB of the archive

rm -rf "$to" "$to.tar.gz"
internal/deps/nixl-pack.sh "$to"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$to/pdrouter" ./cmd/pdrouter
wheel=$("$python" -B kvplane/vllm/wheel.py bin/libpdkv.so "$to")
mkdir "$to/connector"
"$python" -m zipfile -e "$wheel" "$to/connector"
"$python" internal/e2e/tiny_model.py "$to/model"
cp kvplane/vllm/bundle/run.sh kvplane/vllm/bundle/*.py LICENSE "$to/"
chmod +x "$to/run.sh"

internal/deps/archive.sh "$to" "$most" "the gateway and $(basename "$wheel")"
