#!/bin/sh
# Installs the openai clients for Python, JavaScript and Go into .deps, at the versions of internal/e2e/openai.lock,
# internal/e2e/suite/package-lock.json and internal/e2e/suite/go/go.mod. Needs python3 with venv and pip, node with npm, and go.
# Does nothing for those that are already there.
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
	"$dir/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes --requirement "$lock"
	"$dir/bin/python" -c 'import openai'
	echo "$want" >"$stamp"
fi
"$dir/bin/python" -c 'import openai; print("openai", openai.__version__, "in .deps/openai")'

suite=$root/internal/e2e/suite
dir=$root/.deps/openai-js
want=$(cat "$suite/package.json" "$suite/package-lock.json" "$suite/suite.mjs" "$0" | sha256sum | cut -d' ' -f1)
if ! command -v npm >/dev/null; then
	echo "openai.sh: no npm: the suite goes without the client for JavaScript" >&2
elif [ "$(cat "$dir/installed" 2>/dev/null)" != "$want" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	cp "$suite/package.json" "$suite/package-lock.json" "$suite/suite.mjs" "$dir/"
	(cd "$dir" && npm ci --silent --ignore-scripts --no-audit --no-fund)
	echo "$want" >"$dir/installed"
	echo "openai for JavaScript in .deps/openai-js"
fi

go -C "$suite/go" build -o "$root/.deps/openai-go/suite" .
echo "openai for Go in .deps/openai-go"
