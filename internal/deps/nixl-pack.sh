#!/bin/sh
# Puts what a machine without network needs of the NIXL wheel in .deps/nixl into a folder: the C library, its UCX plugin,
# UCX with its CUDA modules, and whatever these need; and nixl-here.sh, which a script there sources to have them found.
# What is packed is found by following the libraries' own lists. Needs readelf; no GPU, no CUDA. The last line that it
# prints says what the other machine must have.
#
# usage: nixl-pack.sh DIRECTORY    makes DIRECTORY/nixl, DIRECTORY/fallback and DIRECTORY/nixl-here.sh
set -eu

cd "$(dirname "$0")/../.."
to=${1:?usage: nixl-pack.sh DIRECTORY}
wheel=.deps/nixl

fail() {
	echo "nixl-pack.sh: $*" >&2
	exit 1
}
command -v readelf >/dev/null || fail "readelf is missing (Debian: binutils)"
[ -d "$wheel" ] || fail "$wheel is missing: make deps"

# only PATTERN prints the one file of the wheel that fits, or fails.
only() {
	found=$(find -H "$wheel" -path "$wheel/$1" | sort)
	[ -n "$found" ] && [ "$(echo "$found" | wc -l)" = 1 ] || fail "$wheel/$1: want one file, have: ${found:-none}"
	echo "$found"
}
# needed FILE prints the names of the libraries that a library names.
needed() {
	readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}

capi=$(only '.nixl_cu*.mesonpy.libs/libnixl_capi.so')
todo=$capi
for file in '.nixl_cu*.mesonpy.libs/plugins/libplugin_UCX.so' 'nixl_cu*.libs/ucx/libuct_cuda.so*' \
	'nixl_cu*.libs/ucx/libucm_cuda.so*' 'nixl_cu*.libs/ucx/libuct_cma.so*'; do
	file=$(only "$file")
	todo="$todo
$file"
done
packed='' outside=''
while [ -n "$todo" ]; do
	next=''
	for file in $todo; do
		packed="$packed$file
"
		for name in $(needed "$file"); do
			# The wheel's libraries carry names of their own, so a name says which file is meant.
			inside=$(find -H "$wheel" \( -path '*/.nixl_cu*.mesonpy.libs/*' -o -path '*/nixl_cu*.libs/*' \) -name "$name" | sort | head -n 1)
			if [ -z "$inside" ]; then
				outside="$outside$name
"
			elif ! printf '%s%s' "$packed" "$next" | grep -qxF "$inside"; then
				next="$next$inside
"
			fi
		done
	done
	todo=$next
done
packed=$(printf '%s' "$packed" | sort -u)
outside=$(printf '%s' "$outside" | sort -u)

mkdir -p "$to/nixl" "$to/fallback"
for file in $packed; do
	mkdir -p "$to/nixl/$(dirname "${file#"$wheel"/}")"
	cp "$file" "$to/nixl/${file#"$wheel"/}"
done
# This machine's copy of what the wheel takes from the system, for a machine that lacks it; the C library and the
# driver are never brought along.
must=''
for name in $outside; do
	case $name in
	libcudart.so.*) continue ;; # for UCX to learn of allocations at once; without it UCX asks the driver each time
	ld-linux* | libc.so.* | libdl.so.* | libm.so.* | libpthread.so.* | librt.so.* | libcuda.so.* | libnvidia-ml.so.*)
		must="$must $name"
		continue
		;;
	esac
	at=$(ldd "$capi" | awk -v name="$name" '$1 == name && $3 ~ /^\// { print $3 }')
	[ -n "$at" ] || fail "$name is missing here"
	cp -L "$at" "$to/fallback/$name"
done
cp internal/deps/nixl-here.sh "$to/"
echo "packed $(echo "$packed" | wc -l) libraries of NIXL's wheel"
echo "the machine must have:$must"
