#!/usr/bin/env bash
# Installs the checkout that contains it into the checkout's .venv, on one host:
#
#   launch/setup.sh tpu,gcp       the extras of setup.cfg, separated by commas
#   launch/setup.sh --dry-run tpu,gcp
#
# uv installs its own Python if the system's is too old, as on TPU VMs (3.10).
set -eu

dry_run=
if [[ ${1-} == --dry-run ]]; then
  dry_run=yes
  shift
fi
if (($# != 1)) || ! [[ $1 =~ ^[a-z0-9][a-z0-9_,-]*$ ]]; then
  echo "setup.sh: error: '$*' is not a list of extras. Usage: launch/setup.sh" \
    "tpu,gcp" >&2
  exit 2
fi

# Prints a command, and runs it unless this is a dry run.
run() {
  printf '%q ' "$@"
  printf '\n'
  [[ -n $dry_run ]] || "$@"
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null ||
  run sh -c 'curl -LsSf https://astral.sh/uv/install.sh | sh'
[[ -d .venv ]] || run uv venv --python '>=3.11,<3.14' .venv
run uv pip install --python .venv/bin/python -e ".[$1]"
