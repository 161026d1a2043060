#!/usr/bin/env bash
# Pins requirements/dev.in into requirements/dev.txt: exact versions, with the hash of every wheel.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../requirements"

tool=../.cache/lock
../.venv/bin/python -m pip install --quiet --upgrade --target "$tool" uv
"$tool/bin/uv" pip compile --quiet --upgrade --generate-hashes --no-header --python-version 3.11 \
  --python-platform x86_64-manylinux_2_36 dev.in --output-file dev.txt
