#!/usr/bin/env bash
# Makes a Chromium without a screen available, which the tests of the page at /ui drive: the one on PATH, else Debian's package.
set -eu
if ! command -v chromium-headless-shell chromium >/dev/null; then
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null
fi
"$(command -v chromium-headless-shell chromium | head -1)" --version
