#!/bin/sh
# Writes the hashes of a requirement file anew: of the files that pip picks on this machine, with this Python. Nothing is
# installed; what the requirements depend on is not added. Needs python3 with venv and pip.
#
# usage: lock.sh FILE
set -eu

lock=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
sed -E 's/ --hash=[^ ]+//g' "$lock" >"$work/requirements"
"$work/venv/bin/pip" install --quiet --dry-run --ignore-installed --no-deps --report "$work/report" --requirement "$work/requirements"
"$work/venv/bin/python" - "$work/report" "$work/requirements" >"$work/lock" <<'END'
import json, re, sys
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
with open(sys.argv[1]) as f:
    hashes = {plain(i["metadata"]["name"]): i["download_info"]["archive_info"]["hashes"]["sha256"] for i in json.load(f)["install"]}
with open(sys.argv[2]) as f:
    for line in f.read().splitlines():
        name = line.split("==")[0].strip()
        print(line if not line or line.startswith("#") else f"{line} --hash=sha256:{hashes[plain(name)]}")
END
cat "$work/lock" >"$lock"
