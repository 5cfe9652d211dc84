#!/bin/sh
# Unpacks the pinned NIXL wheel into .deps/nixl, where pdrouter's tests and binaries look for it.
# Needs python3 with pip; no CUDA, no GPU. Safe to call again: it does nothing when the pinned version is there.
set -eu

package=nixl-cu12
version=1.5.1
cd "$(dirname "$0")/../.."
to=.deps/nixl

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

if [ "$(cat "$to/.installed" 2>/dev/null)" = "$sum" ]; then
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work" "$to.new"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	--python-version 3.12 --abi cp312 --platform "manylinux_2_28_$arch" --dest "$work" "$package==$version"
set -- "$work"/*.whl
echo "$sum  $1" | sha256sum --check --status || {
	echo "nixl.sh: $(basename "$1") has another sha256 than the pinned $sum" >&2
	exit 1
}

rm -rf "$to.new"
mkdir -p "$to.new"
python3 -m zipfile -e "$1" "$to.new"
echo "$sum" >"$to.new/.installed"
rm -rf "$to"
mv "$to.new" "$to"
