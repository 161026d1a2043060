#!/usr/bin/env bash
# Pins requirements/*.in into requirements/*.txt: exact versions, with the hash of every wheel.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../requirements"

tool=../.cache/lock
../.venv/bin/python -m pip install --quiet --upgrade --target "$tool" uv
pin() {
  "$tool/bin/uv" pip compile --quiet --upgrade --generate-hashes --no-header --python-version 3.11 \
    --python-platform x86_64-manylinux_2_36 "$1.in" --output-file "$1.txt" "${@:2}"
}
pin dev
pin models --no-deps
