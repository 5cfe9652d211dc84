#!/usr/bin/env bash
# Puts promtool into .deps/prometheus, from Debian's package of Prometheus, which is unpacked and not installed: its server would start.
set -eu
cd "$(dirname "$0")/../.."
to=.deps/prometheus
if ! [ -x $to/usr/bin/promtool ]; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	apt-get update -qq
	(cd "$dir" && apt-get download -qq -o APT::Sandbox::User=root prometheus)
	mkdir -p $to
	dpkg -x "$dir"/prometheus_*.deb $to
fi
$to/usr/bin/promtool --version 2>&1 | head -1
