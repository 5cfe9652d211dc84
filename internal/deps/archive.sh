#!/bin/sh
# Packs a folder beside itself, and says what came of it.
#
# usage: archive.sh DIRECTORY MOST WHAT    makes DIRECTORY.tar.gz of at most MOST MiB
set -eu

to=$1 most=$2 what=$3
tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
size=$(du -m "$to.tar.gz" | cut -f1)
[ "$size" -le "$most" ] || {
	echo "archive.sh: $to.tar.gz has $size MiB; want at most $most" >&2
	exit 1
}
echo "packed $what: $to, $(du -sm "$to" | cut -f1) MiB; $to.tar.gz, $size MiB"
