#!/usr/bin/env bash
# Starts a run on a Cloud TPU slice of any number of hosts, with gcloud:
#
#   export NAME=gpt1 ZONE=us-central1-a TYPE=v5litepod-16 SPOT=1
#   launch/tpu.sh up python -m gpt1_jax.main --config=configs/pretrain.py \
#     --workdir=gs://BUCKET/runs/gpt1
#   launch/tpu.sh logs
#
# The API behind `gcloud compute tpus`, including queued resources, is legacy: Google no
# longer develops it actively and recommends GKE (launch/jobset.yaml) or managed instance
# groups of Compute Engine instead. It is still the shortest way to a v5e.
#
# Every host runs the same command, detached, and JAX finds the others. restart.sh
# restarts the command if it can resume. After a preemption, run the same `up` again; the
# run resumes if its folder is on gs://.
#
#   up COMMAND...    create, setup, run
#   create           make the slice, unless it exists; replace a preempted one
#   setup            copy this checkout to all hosts and install it
#   run COMMAND...   start the command on all hosts; its output goes to ~/gpt1_jax.log
#   status           the slice's state; whether each host runs, and its last line
#   logs             follow the output of host 0
#   stop             SIGTERM to the command on all hosts: it saves and ends
#   delete           delete the slice, which ends its costs
#   --dry-run        before any of these: print the commands and call none
#
# Variables:
#   NAME ZONE TYPE   of the slice; all three must be set
#   PROJECT          default: gcloud's own
#   VERSION          the runtime; default: the one that belongs to TYPE
#   SPOT=1           cheaper, may be preempted at any time
#   QUEUED=1         wait in the queue of queued resources, at most WAIT_HOURS=24
#   EXTRAS=tpu,gcp,tfds  what to install of setup.cfg's extras
#   RESTARTS=10      how often each host restarts the command
set -euo pipefail

fail() {
  echo "tpu.sh: error: $1" >&2
  exit 2
}

# --- gcloud ---------------------------------------------------------------------------

exec 3>&1 # where dry runs print, also inside functions whose output is captured

# Calls gcloud, or prints the command.
call() {
  if [[ -z $dry_run ]]; then
    gcloud "$@"
    return
  fi
  printf 'gcloud' >&3
  local argument quote="'\\''"
  for argument; do
    if [[ $argument =~ ^[A-Za-z0-9_./:=,+@-]+$ ]]; then
      printf ' %s' "$argument" >&3
    else
      printf " '%s'" "${argument//\'/$quote}" >&3
    fi
  done
  printf '\n' >&3
}

# `tpus GROUP VERB ARGUMENT...`, with zone and project.
tpus() {
  local group=$1 verb=$2
  shift 2
  call compute tpus "$group" "$verb" "$@" --zone="$ZONE" ${PROJECT:+"--project=$PROJECT"}
}

# Runs a line of shell on the given host, or on all of them.
on_host() {
  tpus tpu-vm ssh "$NAME" --worker="$1" --command="$2" --quiet \
    --strict-host-key-checking=no --ssh-flag='-o ServerAliveInterval=30'
}

# Prints the state of the slice or queued resource, or nothing if it does not exist.
state() {
  local errors code=0
  errors=$(mktemp)
  tpus "$group" describe "$NAME" --format="value($state_field)" 2>"$errors" || code=$?
  if grep -q NOT_FOUND "$errors"; then
    code=0
  elif ((code != 0)); then
    cat "$errors" >&2
  fi
  rm "$errors"
  return "$code"
}

# --- subcommands ----------------------------------------------------------------------

create() {
  local now
  now=$(state)
  case $now in
    READY | ACTIVE)
      echo "tpu.sh: $NAME is there."
      return
      ;;
    PREEMPTED | TERMINATED | SUSPENDED | FAILED)
      echo "tpu.sh: $NAME is $now; replacing it."
      delete
      submit
      ;;
    "") submit ;;
    *) [[ -n $QUEUED ]] || fail "$NAME is $now: wait until it is READY, or delete it." ;;
  esac
  [[ -z $QUEUED || -n $dry_run ]] || wait_in_queue
}

submit() {
  if [[ -n $QUEUED ]]; then
    tpus queued-resources create "$NAME" --node-id="$NAME" \
      --accelerator-type="$TYPE" --runtime-version="$VERSION" ${SPOT:+--spot}
  else
    tpus tpu-vm create "$NAME" \
      --accelerator-type="$TYPE" --version="$VERSION" ${SPOT:+--spot}
  fi
}

wait_in_queue() {
  local now shown="" deadline=$((SECONDS + WAIT_HOURS * 3600))
  while true; do
    now=$(state) || now=unreachable # for now
    case $now in
      ACTIVE) return ;;
      "" | FAILED | SUSPENDED) fail "$NAME is ${now:-gone}." ;;
    esac
    ((SECONDS < deadline)) || fail "$NAME is still $now after $WAIT_HOURS hours."
    [[ $now == "$shown" ]] || echo "tpu.sh: $NAME is $now; waiting."
    shown=$now
    sleep 30
  done
}

setup() {
  local archive=gpt1_jax.tar.gz folder=
  if [[ -z $dry_run ]]; then
    folder=$(mktemp -d)
    # Packs the current files, except those that git ignores.
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$folder'" EXIT
    (cd "$root" && git ls-files -z --cached --others --exclude-standard) \
      >"$folder/names" || fail "$root must be a git checkout."
    # Without those that were deleted and not committed yet.
    (cd "$root" && while IFS= read -rd '' name; do
      [[ ! -e $name && ! -L $name ]] || printf '%s\0' "$name"
    done <"$folder/names" | tar -czf "$folder/$archive" --null -T -) ||
      fail "cannot pack $root."
  fi
  tpus tpu-vm scp "${folder:+$folder/}$archive" "$NAME:$archive" --worker=all --quiet \
    --strict-host-key-checking=no
  on_host all "mkdir -p gpt1_jax && tar -xzf $archive -C gpt1_jax && \
bash gpt1_jax/launch/setup.sh $EXTRAS"
}

# `ssh --worker=all` shows nothing until the command ends, so the command runs detached.
run() {
  local command
  command=$(printf '%q ' "$@")
  on_host all "RESTARTS=$RESTARTS bash gpt1_jax/launch/detached.sh start ${command% }"
}

status() {
  local now
  now=$(state)
  [[ -n $dry_run ]] || echo "$NAME: ${now:-not there}"
  [[ $now == READY || $now == ACTIVE || -n $dry_run ]] || return 0
  on_host all "bash gpt1_jax/launch/detached.sh status"
}

logs() { on_host 0 'tail -n 100 -f ~/gpt1_jax.log'; }

stop() { on_host all "bash gpt1_jax/launch/detached.sh stop"; }

delete() {
  if [[ -n $QUEUED ]]; then
    tpus queued-resources delete "$NAME" --force --quiet
  else
    tpus tpu-vm delete "$NAME" --quiet
  fi
}

# --- arguments ------------------------------------------------------------------------

dry_run=
if [[ ${1-} == --dry-run ]]; then
  dry_run=yes
  shift
fi
action=${1-}
(($# == 0)) || shift
case $action in
  up | run) (($# > 0)) || fail "$action needs a command: launch/tpu.sh $action python ..." ;;
  create | setup | status | logs | stop | delete)
    (($# == 0)) || fail "$action takes no arguments, not '$*'."
    ;;
  *) fail "'$action' is none of up, create, setup, run, status, logs, stop, delete." ;;
esac

[[ -n ${NAME-} && -n ${ZONE-} && -n ${TYPE-} ]] ||
  fail "NAME, ZONE and TYPE must be set, such as gpt1, us-central1-a, v5litepod-16."
case $TYPE in
  v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
  v5p-*) runtime=v2-alpha-tpuv5 ;;
  v6e-*) runtime=v2-alpha-tpuv6e ;;
  v[234]-*) runtime=tpu-ubuntu2204-base ;;
  *) runtime= ;;
esac
VERSION=${VERSION:-$runtime}
[[ -n $VERSION ]] || fail "no runtime is known for TYPE=$TYPE; set VERSION."
SPOT=${SPOT-}
QUEUED=${QUEUED-}
WAIT_HOURS=${WAIT_HOURS:-24}
EXTRAS=${EXTRAS:-tpu,gcp,tfds}
RESTARTS=${RESTARTS:-10}
for number in "$WAIT_HOURS" "$RESTARTS"; do
  [[ $number =~ ^[0-9]+$ ]] || fail "'$number' is not a whole number."
done
WAIT_HOURS=$((10#$WAIT_HOURS)) # decimal, leading zeros or not
[[ -n $dry_run ]] || command -v gcloud >/dev/null || fail "gcloud is not installed."

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
group=tpu-vm
state_field=state
if [[ -n $QUEUED ]]; then
  group=queued-resources
  state_field=state.state
fi

case $action in
  up)
    create
    setup
    run "$@"
    ;;
  *) "$action" "$@" ;;
esac
