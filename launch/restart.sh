#!/usr/bin/env bash
# Runs a command, and runs it again when it can resume, a limited number of times:
#
#   launch/restart.sh COMMAND [ARGUMENT...]
#
# It can resume after exit code 75 (stopped with its state saved) and after death by a
# signal: a process may be killed (137) or crash (139), and JAX then aborts the others
# (134). Any other failure, such as a wrong configuration, would only recur, so this
# script ends with its exit code.
#
# It passes SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 on as SIGTERM. The command then
# saves and ends with 75, and this script ends too, since somebody wanted a stop. The same
# command resumes.
#
#   RESTARTS=10         the number of restarts; then it gives up with exit code 1
#   RESTART_DELAY=120   seconds before a restart: longer than JAX's heartbeat timeout
#                       (100), so that all hosts notice the end of the old processes
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
trap stop TERM INT HUP USR1 USR2

# Runs a command in a process group of its own and returns its exit code.
run() {
  local code
  "$@" &
  child=$!
  [[ -n $stopped ]] && stop # for a signal that came just before
  while true; do
    interrupted=
    wait "$child"
    code=$?
    [[ -z $interrupted ]] && break # otherwise a signal ended only the wait
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
