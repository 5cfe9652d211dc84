#!/bin/sh
# Installs what `pdrouter bench` measures beside pdrouter: nginx and haproxy (those on the machine, else Debian's packages), and
# the pinned wheels of vLLM's router and smg in .deps/peers, SGLang's in .deps/sglang-router. Needs python3 with pip; none of what
# the wheels depend on. Safe to call again: it does nothing for what is there. The bench leaves out what is not.
set -eu

cd "$(dirname "$0")/../.."
missing=
for proxy in nginx haproxy; do
	PATH=$PATH:/usr/sbin command -v $proxy >/dev/null || missing="$missing $proxy"
done
if [ -n "$missing" ]; then
	# With that run level no service is started where services are scripts; where systemd starts them, they are stopped again.
	if apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
		for proxy in $missing; do
			systemctl disable --now "$proxy" >/dev/null 2>&1 || true
		done
	else
		echo "peers.sh:$missing cannot be installed: as root on Debian or Ubuntu, apt-get install$missing; the bench goes on without" >&2
	fi
fi
for proxy in nginx haproxy; do
	PATH=$PATH:/usr/sbin command -v $proxy || true
done

if [ "$(uname -m)" != x86_64 ]; then
	echo "peers.sh: no pinned wheels for $(uname -m): the bench goes without other routers" >&2
	exit 0
fi
internal/deps/sglang.sh
internal/deps/wheel.sh internal/deps/vllm-router.lock 3.11 abi3 manylinux_2_28_x86_64 .deps/peers/vllm-router
internal/deps/wheel.sh internal/deps/smg.lock 3.11 abi3 manylinux_2_17_x86_64 .deps/peers/smg
