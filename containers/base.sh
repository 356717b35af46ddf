#!/usr/bin/env bash
# A base image for machines without an image registry: Debian bookworm with its Python 3.11, made
# with debootstrap (apt-get install debootstrap; needs root) from the package mirror of this machine.
#   containers/base.sh [TAG [PACKAGE ...]]     default trace-bench/python:3.11; further Debian packages
set -euo pipefail
tag=${1:-trace-bench/python:3.11}
packages=$(IFS=,; echo "python3${2:+,${*:2}}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mirror=${DEBIAN_MIRROR:-$(sed -nE 's/^(deb |URIs: *)(\[[^]]*\] *)?([a-z]+:\/\/[^ ]+).*/\3/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1 || true)}
debootstrap --variant=minbase --include="$packages" bookworm "$place" ${mirror:+"$mirror"} >&2
rm -rf "$place"/var/cache/apt/* "$place"/var/lib/apt/lists/* "$place"/usr/share/{doc,man,locale}
tar -C "$place" -c . | docker import --change 'ENV LANG=C.UTF-8' - "$tag"
