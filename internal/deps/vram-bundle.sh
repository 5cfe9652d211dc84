#!/bin/sh
# Packs what a GPU machine without network needs to run the plane's suites over a GPU's memory: the test binaries, and
# NIXL as nixl-pack.sh has it. Needs go and readelf; no GPU, no CUDA.
#
# usage: vram-bundle.sh [DIRECTORY]    makes DIRECTORY (default bin/vram-bundle) and DIRECTORY.tar.gz
set -eu

cd "$(dirname "$0")/../.."
to=${1:-bin/vram-bundle}
most=64 # MiB of the archive

rm -rf "$to" "$to.tar.gz"
internal/deps/nixl-pack.sh "$to"
# Without cgo a binary needs no particular C library.
for package in kvplane/agent kvplane/transport kvplane/transport/nixltransport internal/cuda internal/refengine; do
	mkdir -p "$to/$package"
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "$to/$package/suite" "./$package"
	if [ -d "$package/testdata" ]; then
		cp -R "$package/testdata" "$to/$package/"
		rm -rf "$to/$package/testdata/fuzz"
	fi
done
cp internal/deps/vram-run.sh "$to/run.sh"
chmod +x "$to/run.sh"

internal/deps/archive.sh "$to" "$most" "5 suites"
