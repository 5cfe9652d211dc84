#!/bin/sh
# Unpacks the pinned wheel of SGLang's own router into .deps/sglang-router, for TestSGLangRouter of internal/e2e.
# Needs python3 with pip; none of the wheel's dependencies. Safe to call again: it does nothing when the pinned version is there.
set -eu

cd "$(dirname "$0")/../.."
case $(uname -m) in
x86_64) ;;
*)
	echo "sglang.sh: no pinned wheel for $(uname -m): TestSGLangRouter is skipped" >&2
	exit 0
	;;
esac
exec internal/deps/wheel.sh internal/deps/sglang.lock 3.11 abi3 manylinux_2_17_x86_64 .deps/sglang-router
