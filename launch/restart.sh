#!/usr/bin/env bash
# Runs a command, and runs it again when it can resume, a limited number of times:
#
#   launch/restart.sh COMMAND [ARGUMENT...]
#
# It can resume after exit code 75 (stopped with its state saved) and after death by a
# signal: JAX aborts the survivors of a dead process (134), which may have been killed
# (137) or have crashed (139). Any other failure, such as a wrong configuration, would
# only repeat itself and is passed on.
#
# SIGTERM and SIGINT reach the command as SIGTERM: it saves and ends with 75, which is
# passed on too, since somebody wanted it to stop. Whoever starts it again resumes it.
#
#   RESTARTS=10         how often, then it gives up with exit code 1
#   RESTART_DELAY=120   seconds in between: longer than JAX's heartbeat timeout (100),
#                       so that all hosts have noticed the end of the old processes
set -um

if (($# == 0)); then
  echo "restart.sh: error: no command. Usage: launch/restart.sh COMMAND..." >&2
  exit 2
fi
limit=${RESTARTS:-10}
delay=${RESTART_DELAY:-120}
for number in "$limit" "$delay"; do
  if ! [[ $number =~ ^[0-9]+$ ]]; then
    echo "restart.sh: error: '$number' is not a number;" \
      "RESTARTS and RESTART_DELAY take whole ones." >&2
    exit 2
  fi
done
limit=$((10#$limit)) # decimal, leading zeros or not

stopped=
interrupted=
child=

# shellcheck disable=SC2329 # called by the trap
stop() {
  stopped=yes
  interrupted=yes
  [[ -n $child ]] && kill -TERM "$child" 2>/dev/null
}
trap stop TERM INT

# Runs a command in a process group of its own and returns its exit code.
run() {
  local code
  "$@" &
  child=$!
  [[ -n $stopped ]] && stop # a signal that came just before
  while true; do
    interrupted=
    wait "$child"
    code=$?
    [[ -z $interrupted ]] && break # otherwise a signal has ended the waiting alone
  done
  child=
  return "$code"
}

for ((count = 1; ; count++)); do
  run "$@"
  code=$?
  if [[ -n $stopped ]] || ((code != 75 && code < 128)); then
    exit "$code"
  fi
  if ((count > limit)); then
    echo "restart.sh: the command ended with $code after $limit restarts; giving up." >&2
    exit 1
  fi
  echo "restart.sh: the command ended with $code; restart $count of $limit" \
    "in $delay seconds." >&2
  run sleep "$delay"
  if [[ -n $stopped ]]; then
    exit "$code"
  fi
done
