#!/usr/bin/env bash
# Builds dist/*.whl, installs it into a fresh environment and tries it outside the checkout.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
root=$PWD
trial=$(mktemp -d "$root/.cache/wheel.XXXXXX")
trap 'rm -rf "$trial"' EXIT

# setuptools would pick up files of an earlier build that the checkout no longer has.
rm -rf build/lib build/bdist.* dist ./*.egg-info
# The custom ops make the wheel specific to the platform; setuptools sees only package data.
.venv/bin/python -m build --wheel --no-isolation \
  --config-setting=--build-option=--plat-name=linux_x86_64 . >"$trial/build.log" 2>&1 ||
  { tail -n 40 "$trial/build.log" >&2; exit 1; }
rm -rf build/lib build/bdist.* ./*.egg-info

# The requirements come from .venv: a second TensorFlow would cost minutes and try nothing new.
.venv/bin/python -m venv --without-pip "$trial/venv"
site=$("$trial/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
.venv/bin/python -c 'import site; print(site.getsitepackages()[0])' >"$site/requirements.pth"
.venv/bin/python -m pip --quiet --python "$trial/venv/bin/python" \
  install --no-deps --no-index --ignore-installed dist/*.whl
cp tools/setup/smoke_test.py "$trial"
cd "$trial"
env -u PYTHONPATH TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python -P smoke_test.py "$site"
cd "$root"
ls -l dist/*.whl
