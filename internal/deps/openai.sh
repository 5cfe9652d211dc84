#!/bin/sh
# Installs the openai Python client into .deps/openai, at the versions of internal/e2e/openai.lock. Needs python3
# with venv and pip. Does nothing when that very set is already there.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
lock=$root/internal/e2e/openai.lock
dir=$root/.deps/openai
stamp=$dir/installed

want=$(cat "$lock" "$0" | sha256sum | cut -d' ' -f1)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
	rm -rf "$dir"
	mkdir -p "$(dirname "$dir")"
	"${PYTHON:-python3}" -m venv "$dir"
	"$dir/bin/pip" install --quiet --no-cache-dir --no-deps --requirement "$lock"
	"$dir/bin/python" -c 'import openai'
	echo "$want" >"$stamp"
fi
"$dir/bin/python" -c 'import openai; print("openai", openai.__version__, "in .deps/openai")'
