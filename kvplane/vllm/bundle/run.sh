#!/bin/sh
# Tries pdrouter's connector inside vLLM, from the folder it lies in: no network, no Go, nothing installed. It starts the
# gateway and engines on loopback, one after another on the same GPU, and compares what a prefill and a decode engine answer
# together with what one engine answers alone. The last line is PASS or FAIL, and so is the exit status. 3 to 10 minutes.
#
# usage: [NAME=VALUE ...] run.sh
#   VLLM=vllm            the command of vLLM 0.32
#   DEVICE=cuda          cpu is for the CPU build
#   TRANSPORT=nixl       tcp is for DEVICE=cpu only
#   REQUESTS=48          how many are compared
#   MODEL=…/model        another model's folder; with it perhaps DTYPE and MARGIN (see ask.py)
#   DTYPE=float32        of the model and its KV
#   GPU_MEMORY_UTILIZATION=0.1, KV_BYTES=268435456    of each engine; KV_BYTES= leaves KV to vLLM
#   VLLM_ARGS=           more arguments of vllm serve
#   START_TIMEOUT=900    seconds that an engine's start may take
#   LOGS=                a folder that keeps the configuration and what all processes have said
set -eu
umask 077
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

fail() {
	echo "FAIL: $*"
	exit 1
}
VLLM=$(command -v "${VLLM:-vllm}") || fail "there is no vllm on PATH; VLLM=path/to/vllm names it"
case $VLLM in /*) ;; *) VLLM=$PWD/$VLLM ;; esac
export VLLM
command -v "$python" >/dev/null || fail "there is no $python; PYTHON=path/to/python3 names it (3.9 or newer, nothing else is needed)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# shellcheck source=internal/deps/nixl-here.sh
. "$here/nixl-here.sh"

# Keys: one signs the tokens of engines and gateway, one the gateway's records. As docs/security.md has it.
keys() {
	"$here/pdrouter" keys new --out "$work/$1" >/dev/null
	find "$work/$1" -name '*.jwk' ! -name '*.pub.jwk'
}
token() {
	subject=$1
	shift
	"$here/pdrouter" token mint --key "$signer" --audience pdrouter-metadata --subject "$subject" --ttl 4h "$@" >"$work/$subject.token"
}
signer=$(keys agents)
keeper=$(keys records)
token gateway --scope plane
token prefill-0 --engine prefill-0 --role prefill --scope 'write read'
token decode-0 --engine decode-0 --role decode --scope 'write read'

trap - EXIT HUP INT TERM # check.py removes the folder
exec "$python" -B "$here/check.py" "$here" "$work" "$signer" "$keeper"
