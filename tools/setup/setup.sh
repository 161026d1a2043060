#!/usr/bin/env bash
# Makes a checkout ready to run: Debian packages, .venv, Horovod, native code. Idempotent.
#
# Every make target calls this first. What is up to date is recognised by a hash of its inputs, so
# a second call costs well under a second. It writes only inside the checkout, except for Debian
# packages, pip's cache and Bazel's own output directory. Logs of the long steps: .cache/setup/*.log
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
unset PYTHONPATH PYTHONHOME  # pip would take another environment's packages for ours
cache=.cache/setup

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# The interpreter must be 3.11: requirements/dev.txt pins wheels of that version. pyenv's shims come last:
# they may exist without the version behind them, and pyenv builds without profile-guided optimization.
find_python() {
  local candidate needed direct=() shims=()
  for candidate in $(type -ap python3.11 python3) /usr/bin/python3.11; do
    if [[ $candidate == */shims/* ]]; then shims+=("$candidate"); else direct+=("$candidate"); fi
  done
  for needed in ensurepip sys; do  # at best one that needs no further package
    for candidate in "${direct[@]}" "${shims[@]}"; do
      if "$candidate" -c "import sys, $needed; sys.exit(sys.version_info[:2] != (3, 11))" 2>/dev/null; then
        echo "$candidate"
        return
      fi
    done
  done
}

# Prints the Debian packages that are missing. What is already there in another form (a Python with its own
# venv module) is accepted.
missing_packages() {
  local python
  python=$(find_python)
  [[ -n $python ]] && "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3.11-venv
  command -v g++ >/dev/null || echo g++
  command -v bazel >/dev/null || echo bazel-bootstrap
  g++ -E -x c++ - <<<'#include <gmock/gmock.h>' >/dev/null 2>&1 || echo libgmock-dev
}

# logged NAME WHAT COMMAND...: runs a long step with its output in a log and a sign of life.
logged() {
  local log="$cache/$1.log" what=$2 start=$SECONDS next=30 status=0
  shift 2
  say "$what (log: $log)"
  # It keeps the lock: after Ctrl-C here it goes on, and the next set-up must wait for it.
  "$@" >"$log" 2>&1 &
  local job=$!
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - start >= next)); then
      say "  ... still at it after $next s"
      ((next += 30))
    fi
  done
  wait "$job" || status=$?
  if ((status)); then
    tail -n 40 "$log" >&2
    die "this step failed with exit code $status: $what. The log is $log; repeat the command."
  fi
  say "  done in $((SECONDS - start)) s"
}

install_packages() {
  apt-get update
  # It waits where a fresh machine is installing its updates.
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=600 "$@"
}

make_venv() {
  local clear=() script=
  # Another Python's packages are of no use, and scripts name the directory, which may have been moved.
  [[ ! -L .venv ]] || die ".venv is a link, to an environment of another checkout: remove the link."
  [[ ! -r .venv/bin/pip ]] || script=$(<.venv/bin/pip)
  [[ .venv/bin/python -ef $1 && $script == *"$PWD/.venv/bin/"* ]] || clear=(--clear)
  "$1" -m venv "${clear[@]}" .venv
  .venv/bin/python -m pip install --disable-pip-version-check --require-hashes \
    -r requirements/dev.txt
  .venv/bin/python -m pip install --disable-pip-version-check --require-hashes --no-deps \
    --no-build-isolation -r requirements/models.txt
}

# Makes this checkout importable in .venv from any directory, and gives it the `tss` command.
install_checkout() {
  .venv/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation \
    --editable .
}

# The native code that Python loads lies next to its wrapper, where a wheel has it too.
build_native() {
  local labels label path
  # Without the lock: a Bazel server started here would hold it until it exits.
  bazel build //:native 9>&-
  labels=$(bazel query --noshow_progress 'labels(srcs, //:native)' 9>&-)
  for label in $labels; do
    path=${label#//}
    path=${path/://}
    install -m 644 "bazel-bin/$path" "$path"
    echo "$path"
  done >"$cache/native.files"
}

# Whether all that a step has made is still there: `git clean` and pip take it, and leave the stamp.
native_is_there() {
  local path
  while read -r path; do [[ -e $path ]] || return 1; done <"$cache/native.files"
} 2>/dev/null
horovod_is_there() { compgen -G '.venv/lib/python3.11/site-packages/horovod-*+tss.*.dist-info' >/dev/null; }

# up_to_date NAME HASH: whether step NAME was last finished with these inputs.
up_to_date() { [[ $(cat "$cache/$1.stamp" 2>/dev/null) == "$2" ]]; }
hash_of() { find "$@" -type f -not -name '*.pyc' -not -name '*.so' -print0 | LC_ALL=C sort -z |
  xargs -0 sha256sum | sha256sum; }

# Horovod's CMake files cut compilers' flags at blanks.
[[ $PWD != *[[:space:]]* ]] || die "the path of this checkout, $PWD, has a blank in it: move the checkout."

no_python="Python 3.11 is needed and is not on PATH; Debian 12 has it as python3."
packages=$(missing_packages)
packages=${packages//$'\n'/ }
if [[ -n $packages ]]; then
  command -v apt-get >/dev/null || die "install these first (Debian's names): $packages."
  # Where another Python is the distribution's own, its packages seldom have 3.11.
  ((EUID == 0)) || [[ -n $(find_python) ]] || ! command -v python3 >/dev/null ||
    die "$no_python Here python3 is $(python3 --version)."
  ((EUID == 0)) || die "Debian packages are missing and only root can install them:" \
    "run \`sudo apt-get install -y $packages\` once, then repeat the command."
fi
mkdir -p "$cache"
# Two commands at once in one checkout: the second waits for the first one's set-up.
exec 9>"$cache/lock"
flock -n 9 || { say "waiting for a set-up of this checkout that still runs" && flock 9; }
if [[ -n $packages ]]; then
  # shellcheck disable=SC2086  # one word per package
  logged apt "installing Debian packages: $packages" install_packages $packages
fi
python=$(find_python)
[[ -n $python ]] || die "$no_python"

want="$PWD $(hash_of requirements/dev.txt requirements/models.txt tools/setup/setup.sh)"
if [[ ! -x .venv/bin/python ]] || ! up_to_date venv "$want"; then
  rm -f "$cache"/{venv,checkout,horovod}.stamp  # it may be interrupted
  logged venv "installing the pinned Python packages into .venv, some 3 GB" make_venv "$python"
  echo "$want" >"$cache/venv.stamp"
fi

want="$PWD $(hash_of pyproject.toml)"
if ! up_to_date checkout "$want"; then
  rm -f "$cache/checkout.stamp"
  logged checkout "installing this checkout into .venv" install_checkout
  echo "$want" >"$cache/checkout.stamp"
fi

want=$(hash_of requirements/dev.txt tools/horovod)
if ! up_to_date horovod "$want" || ! horovod_is_there; then
  rm -f "$cache/horovod.stamp"
  logged horovod "building Horovod, about 3 minutes" .venv/bin/python tools/horovod/build.py
  echo "$want" >"$cache/horovod.stamp"
fi

want=$(hash_of requirements/dev.txt .bazelrc BUILD custom_ops tools/bazel)
if ! up_to_date native "$want" || ! native_is_there; then
  rm -f "$cache/native.stamp"
  logged native "building the native code with Bazel" build_native
  echo "$want" >"$cache/native.stamp"
fi
