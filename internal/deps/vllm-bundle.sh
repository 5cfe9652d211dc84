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

tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
size=$(du -m "$to.tar.gz" | cut -f1)
[ "$size" -le "$most" ] || {
	echo "vllm-bundle.sh: $to.tar.gz has $size MiB; want at most $most" >&2
	exit 1
}
echo "packed the gateway and $(basename "$wheel"): $to, $(du -sm "$to" | cut -f1) MiB; $to.tar.gz, $size MiB"
