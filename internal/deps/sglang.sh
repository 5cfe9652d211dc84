#!/bin/sh
# Unpacks the pinned wheel of SGLang's own router into .deps/sglang-router, for TestSGLangRouter of internal/e2e.
# Needs python3 with pip; none of the wheel's dependencies. Safe to call again: it does nothing when the pinned version is there.
set -eu

package=sglang-router
version=0.3.2
cd "$(dirname "$0")/../.."
to=.deps/sglang-router

case $(uname -m) in
x86_64) sum=ba5a24951e5e0357fe390782fcd1abd861448a87216832dbf2e501a1dd1548eb ;;
*)
	echo "sglang.sh: no pinned wheel for $(uname -m): TestSGLangRouter is skipped" >&2
	exit 0
	;;
esac

if [ "$(cat "$to/.installed" 2>/dev/null)" = "$sum" ]; then
	exit 0
fi

mkdir -p .deps
work=$(mktemp -d)
trap 'rm -rf "$work" "$to.new"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
	--python-version 3.11 --abi abi3 --platform manylinux_2_17_x86_64 --dest "$work" "$package==$version"
set -- "$work"/*.whl
echo "$sum  $1" | sha256sum --check --status || {
	echo "sglang.sh: $(basename "$1") has another sha256 than the pinned $sum" >&2
	exit 1
}

rm -rf "$to.new"
mkdir -p "$to.new"
python3 -m zipfile -e "$1" "$to.new"
echo "$sum" >"$to.new/.installed"
rm -rf "$to"
mv "$to.new" "$to"
echo "$package $version in $to"
