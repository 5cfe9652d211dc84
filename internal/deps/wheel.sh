#!/bin/sh
# Unpacks a pinned wheel into a folder, none of what it depends on. LOCK is a requirement file with the wheel's name, version and
# hashes. Needs python3 with pip. Safe to call again: it does nothing when that very wheel is there.
#
# usage: wheel.sh LOCK PYTHON ABI PLATFORM FOLDER
set -eu

lock=$1 python=$2 abi=$3 platform=$4 to=$5

want=$(sha256sum <"$lock" | cut -d' ' -f1)
if [ "$(cat "$to/.installed" 2>/dev/null)" = "$want" ]; then
	exit 0
fi

mkdir -p "$(dirname "$to")"
work=$(mktemp -d)
trap 'rm -rf "$work" "$to.new"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	--python-version "$python" --abi "$abi" --platform "$platform" --dest "$work" --require-hashes --requirement "$lock"
set -- "$work"/*.whl

rm -rf "$to.new"
mkdir -p "$to.new"
python3 -m zipfile -e "$1" "$to.new"
echo "$want" >"$to.new/.installed"
rm -rf "$to"
mv "$to.new" "$to"
echo "$(basename "$1") in $to"
