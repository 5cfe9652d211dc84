#!/bin/sh
# Unpacks the pinned NIXL wheel into .deps/nixl, where pdrouter's tests and binaries look for it.
# Needs python3 with pip; no CUDA, no GPU. Safe to call again: it does nothing when the pinned version is there.
set -eu

cd "$(dirname "$0")/../.."
# One wheel whatever the local Python is: only its C library is used.
arch=$(uname -m)
case $arch in
x86_64) sum=a02005f84e498641b8fe02d058fdc6762c99edf7ae6430176d2d16fa57f4fb93 ;;
aarch64) sum=98d4b169813a5110842aefc383ba3bf259a886cd09cc9d54c7a6db69bb36de4d ;;
*)
	echo "nixl.sh: no pinned wheel for $arch" >&2
	exit 1
	;;
esac
exec internal/deps/wheel.sh nixl-cu12 1.5.1 "$sum" 3.12 cp312 "manylinux_2_28_$arch" .deps/nixl
