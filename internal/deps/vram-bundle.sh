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
for package in kvplane kvplane/cuda internal/refengine; do
	mkdir -p "$to/$package"
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "$to/$package/suite" "./$package"
	if [ -d "$package/testdata" ]; then
		cp -R "$package/testdata" "$to/$package/"
		rm -rf "$to/$package/testdata/fuzz"
	fi
done
cp internal/deps/vram-run.sh "$to/run.sh"
chmod +x "$to/run.sh"

tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
size=$(du -m "$to.tar.gz" | cut -f1)
[ "$size" -le "$most" ] || {
	echo "vram-bundle.sh: $to.tar.gz has $size MiB; want at most $most" >&2
	exit 1
}
echo "packed 3 suites: $to, $(du -sm "$to" | cut -f1) MiB; $to.tar.gz, $size MiB"
