#!/usr/bin/env bash
# Starts N processes on this machine that join like the hosts of a pod:
#
#   launch/local.sh 2 python -m gpt1_jax.main --config=configs/pretrain.py:quickstart
#
# Use it to try a run of several hosts before renting them, or to give each GPU of a
# machine its own process. Training does not need it, because one process drives all
# devices of a machine. It does not work on a TPU, which serves only one process.
#
# Process 0 prints as if it were alone; the others write to log files, whose last lines
# are shown if they fail. The first process that fails decides the exit code, and the
# others get a moment to end by themselves. Ctrl-C and SIGTERM save and stop the run; a
# second one kills it.
#
#   --dry-run       print the commands instead of running them
#   --restarts=R    restart at most R times if the run can resume (default 0;
#                   restart.sh says when it can)
#   --grace=S       seconds before the rest are killed after a failure (default 30)
#   --logs=DIR      where the log files go (default: a new folder in /tmp)
set -u

usage="Usage: launch/local.sh [--dry-run] [--restarts=R] [--grace=S] [--logs=DIR] \
N COMMAND..."

fail() {
  echo "local.sh: error: $1" >&2
  echo "$usage" >&2
  exit 2
}

dry_run=
restarts=0
grace=30
logs=
processes=
while (($# > 0)); do
  case $1 in
    --dry-run) dry_run=yes ;;
    --restarts=*) restarts=${1#*=} ;;
    --grace=*) grace=${1#*=} ;;
    --logs=*) logs=${1#*=} ;;
    -*) fail "unknown option $1." ;;
    *)
      [[ -n $processes ]] && break
      processes=$1
      ;;
  esac
  shift
done
[[ $processes =~ ^[1-9][0-9]*$ ]] ||
  fail "the number of processes is '$processes', not 1 or more."
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts=$restarts is not a whole number."
[[ $grace =~ ^[0-9]+$ ]] || fail "--grace=$grace is not a whole number of seconds."
restarts=$((10#$restarts)) grace=$((10#$grace)) # decimal, leading zeros or not
(($# > 0)) || fail "no command for the $processes processes."

if [[ -n $dry_run ]]; then
  port=PORT # a free one
else
  port=$(python3 -c \
    'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])') ||
    fail "python3 is needed to find a free port."
  if [[ -z $logs ]]; then
    logs=$(mktemp -d "${TMPDIR:-/tmp}/gpt1_jax-local.XXXXXX") || exit 2
  fi
  mkdir -p "$logs" || exit 2
  if ((restarts > 0)); then
    export RESTARTS=$restarts RESTART_DELAY=0 # all old processes have ended by then
    here=$(dirname "${BASH_SOURCE[0]}")
    exec "$here/restart.sh" "$here/local.sh" --grace="$grace" --logs="$logs" \
      "$processes" "$@"
  fi
fi

pids=()

# Sends a signal to the processes; with "-" to all of their groups.
signal_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do
    kill "-$1" -- "${2-}$pid" 2>/dev/null
  done
}

signalled=

# shellcheck disable=SC2329 # called by the trap
stop() {
  if [[ -n $signalled ]]; then
    signal_all KILL -
  else
    signal_all TERM # not their children: saving needs them, such as readers of data
  fi
  signalled=yes
}

# Prints the exit code of a failed process, and its last output.
report() {
  echo "local.sh: process $1 of $processes ended with $2." >&2
  if (($1 > 0 && $2 != 75)); then
    echo "local.sh: the end of $logs/process-$1.log:" >&2
    tail -n 20 "$logs/process-$1.log" >&2
  fi
}

start() {
  local index
  for ((index = 0; index < processes; index++)); do
    variables=(
      "JAX_COORDINATOR_ADDRESS=localhost:$port"
      "JAX_NUM_PROCESSES=$processes"
      "JAX_PROCESS_ID=$index"
      "JAX_LOCAL_DEVICE_IDS=$index" # one GPU each, if there are any
    )
    if [[ -n $dry_run ]]; then
      printf '%s ' "${variables[@]}"
      printf '%q ' "$@"
      printf '&\n'
    elif ((index == 0)); then
      env "${variables[@]}" "$@" </dev/null &
    else
      env "${variables[@]}" "$@" </dev/null >>"$logs/process-$index.log" 2>&1 &
    fi
    [[ -z $dry_run ]] && pids+=($!)
  done
}

trap stop TERM INT HUP USR1 USR2
set -m # puts each process into its own group, which Ctrl-C does not reach
start "$@"
set +m
[[ -n $dry_run ]] && exit 0
((processes > 1)) && echo "local.sh: output of the other processes: $logs" >&2

first_failure=0
deadline=
ended=()
while ((${#ended[@]} < processes)); do
  for index in "${!pids[@]}"; do
    if [[ -n ${ended[index]-} ]] || kill -0 "${pids[index]}" 2>/dev/null; then
      continue
    fi
    wait "${pids[index]}"
    code=$?
    ended[index]=$code
    if ((code != 0 && first_failure == 0)); then
      first_failure=$code
      deadline=$((SECONDS + grace))
      report "$index" "$code"
    fi
  done
  if [[ -n $deadline ]] && ((SECONDS >= deadline)); then
    echo "local.sh: killing what is left $grace seconds later." >&2
    signal_all KILL -
    deadline=
  fi
  sleep 0.2
done
exit "$first_failure"
