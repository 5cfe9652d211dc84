#!/usr/bin/env bash
# Makes a real Kubernetes API server available in .deps/kube: kube-apiserver, built from its Go modules (3 minutes with an empty cache), and
# etcd, unpacked from Debian's package. It does nothing when both are there.
set -euo pipefail
cd "$(dirname "$0")/../.."
want=$(cat internal/deps/apiserver/go.mod internal/deps/apiserver/main.go | sha256sum | cut -c1-16)
dir=.deps/kube
if [ "$(cat $dir/version 2>/dev/null)" != "$want" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	go -C internal/deps/apiserver build -trimpath -o "$PWD/$dir/kube-apiserver" .
	if command -v etcd >/dev/null; then
		ln -s "$(command -v etcd)" "$dir/etcd"
	else
		apt-get update -qq
		(cd "$dir" && apt-get download -qq etcd-server && dpkg -x etcd-server_*.deb package && mv package/usr/bin/etcd etcd && rm -rf package etcd-server_*.deb)
	fi
	echo "$want" >"$dir/version"
fi
$dir/kube-apiserver --version
$dir/etcd --version | sed -n 1p
