#!/usr/bin/env bash
# Makes python3 with venv and pip available: what is on PATH, else Debian's packages.
set -eu
if ! python3 -c 'import ensurepip, pip, venv' 2>/dev/null; then
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv python3-pip >/dev/null
fi
python3 --version
