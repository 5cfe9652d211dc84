#!/bin/sh
# Pins the images of the Dockerfile and of the Helm chart to the digests that their tags have in the registry now.
# In the chart only images that have a digest are changed. Needs crane, or docker with buildx.
set -eu

cd "$(dirname "$0")/../.."

digest() {
	if command -v crane >/dev/null; then
		crane digest "$1"
	else
		docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
	fi
}

images=$(
	sed -nE 's/^FROM ([^ @]+:[^ @]+)(@[^ ]+)?( .*)?$/\1/p' Dockerfile
	sed -nE 's/^ *image: ([^ @]+:[^ @]+)@[^ ]+.*$/\1/p' deploy/helm/pdrouter/values.yaml
)
for image in $images; do
	new=$(digest "$image")
	echo "$new" | grep -qxE 'sha256:[0-9a-f]{64}' || {
		echo "pin-images.sh: $image: the registry's answer is no digest: $new" >&2
		exit 1
	}
	sed -i -E "s|^(FROM )$image(@[^ ]+)?( .*)?\$|\1$image@$new\3|" Dockerfile
	sed -i -E "s|^( *image: )$image@[^ ]+|\1$image@$new|" deploy/helm/pdrouter/values.yaml
	echo "$image@$new"
done
