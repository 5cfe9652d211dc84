#!/bin/sh
# Runs the plane's suites over a GPU's memory, from the folder it lies in: no network, no Go, no CUDA toolkit. Prints
# what it found first, then the tests, a few figures, and at the end what passed, failed and was skipped. It fails if a
# test fails, and, unless ALLOW=skip, if nothing ran over a GPU's memory.
#
# usage: run.sh [PATTERN]    of the tests of the transports; default: all that move bytes
set -u
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH
here=$(cd "$(dirname "$0")" && pwd) || exit 1
pattern=${1:-Transport|Process|NIXL|Memory|Agent}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
log=$work/log

. "$here/nixl-here.sh"
env | grep -E '^(UCX|NIXL|CUDA|LD_LIBRARY|PDROUTER)_' | sed 's/^/set:      /'

failed=0
# suite FOLDER PATTERN runs the tests of one package in its folder, as go test does.
suite() {
	echo "== $1"
	(cd "$here/$1" && ./suite -test.v -test.count=1 -test.timeout=8m -test.run "$2") >"$log" 2>&1 || failed=1
	grep -vE '^[[:space:]]*=== ' "$log"
	cat "$log" >>"$work/all"
}
: >"$work/all"
suite internal/cuda .
suite kvplane/agent "$pattern"
suite kvplane/transport "$pattern"
suite kvplane/transport/nixltransport "$pattern"
suite internal/refengine 'Device'

echo "== figures: the driver's own copies, and writes over NIXL"
for folder in internal/cuda kvplane/transport; do
	(cd "$here/$folder" && ./suite -test.run '^$' -test.v -test.bench BenchmarkMemory -test.benchtime 300ms) 2>&1 | grep -E 'ns/op|SKIPPED|panic|FAIL'
done

count() { grep -cE "^[[:space:]]*--- $1:.*$2" "$work/all"; }
echo "== $(count PASS '') passed, $(count FAIL '') failed, $(count SKIP '') skipped; over a GPU's memory $(count PASS '(vram|GPU|RealDevice)') passed, $(count SKIP '(vram|GPU|RealDevice)') skipped"
if [ "$(count PASS '(vram|GPU|RealDevice)')" = 0 ] && [ "${ALLOW:-}" != skip ]; then
	echo "== nothing ran over a GPU's memory; ALLOW=skip takes that for a success"
	failed=1
fi
exit $failed
