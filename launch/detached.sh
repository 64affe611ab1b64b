#!/usr/bin/env bash
# Runs a command on one host, one at a time, that outlives the connection to it:
#
#   launch/detached.sh start COMMAND...   under restart.sh, in the checkout's .venv
#   launch/detached.sh status             whether it runs, and its last line
#   launch/detached.sh stop               SIGTERM: the program saves and ends
#
# Its output is appended to ~/gpt1_jax.log. launch/tpu.sh calls this on every host.
set -u

log=~/gpt1_jax.log
pid_file=~/gpt1_jax.pid

# After the host has started anew, another process may have the same number.
runs() {
  [[ -e $pid_file ]] && kill -0 "$(<"$pid_file")" 2>/dev/null &&
    ps -o args= -p "$(<"$pid_file")" | grep -q launch/restart.sh
}

case ${1-} in
  start)
    shift
    if (($# == 0)); then
      echo "detached.sh: error: start needs a command." >&2
      exit 2
    fi
    if runs; then
      echo "detached.sh: error: a command runs on $HOSTNAME already; stop ends it." >&2
      exit 1
    fi
    cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
    # shellcheck source=/dev/null
    [[ ! -e .venv/bin/activate ]] || . .venv/bin/activate
    nohup bash launch/restart.sh "$@" >>"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    echo "$HOSTNAME: started"
    ;;
  status)
    runs && echo "$HOSTNAME: runs" || echo "$HOSTNAME: does not run"
    [[ ! -e $log ]] || tail -n 1 "$log"
    ;;
  stop)
    if runs; then
      kill -TERM "$(<"$pid_file")" && echo "$HOSTNAME: stopping"
    else
      echo "$HOSTNAME: does not run"
    fi
    ;;
  *)
    echo "detached.sh: error: '${1-}' is none of start, status, stop." >&2
    exit 2
    ;;
esac
