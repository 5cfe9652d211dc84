#!/bin/sh
# Unpacks the pinned NIXL wheel into .deps/nixl, where pdrouter's tests and binaries look for it.
# Needs python3 with pip; no CUDA, no GPU. Safe to call again: it does nothing when the pinned version is there.
set -eu

cd "$(dirname "$0")/../.."
# One wheel whatever the local Python is: only its C library is used.
arch=$(uname -m)
case $arch in
x86_64 | aarch64) ;;
*)
	echo "nixl.sh: no pinned wheel for $arch" >&2
	exit 1
	;;
esac
exec internal/deps/wheel.sh internal/deps/nixl.lock 3.12 cp312 "manylinux_2_28_$arch" .deps/nixl
