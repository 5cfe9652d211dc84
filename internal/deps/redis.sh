#!/usr/bin/env bash
# Makes redis-server available: the one on PATH, else Debian's package.
set -eu
if ! command -v redis-server >/dev/null; then
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
fi
redis-server --version
