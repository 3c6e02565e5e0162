#!/bin/sh
# Measures every speed that the bridge promises and prints a table of pass and
# fall short. Exits 1 if one falls short.
#
#   ./speed.sh [REPETITIONS [FILE]]
#
# FILE keeps the JSON lines (default speed.jsonl) and is begun anew. QUIET is
# how long each run waits at most for the machine to be quiet (default 10s).
set -eu
cd "$(dirname "$0")"
reps=${1:-5}
file=${2:-speed.jsonl}
quiet=${QUIET:-10s}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o peers .
go build -C ../.. -buildvcs=false -o "$tmp/bridge" ./cmd/bridge # one for all runs
: >"$file"
run() { ./peers -bridge "$tmp/bridge" -out "$file" -reps "$reps" -quiet "$quiet" -payload 256 "$@"; }

bridge=delaybridge:everysec
# Intake: producers that wait, and pipelined with 4096 outstanding.
run -scenario A -n 1000000 -maxtime 3s -conc 64 -system "nats-rr,nats:sync,$bridge+sync,delaybridge:local+sync"
run -scenario A -n 1000000 -maxtime 3s -conc 8,64 -system "nats:async,$bridge+async,$bridge+async+ids,delaybridge:local+async"
# 100,000 jobs due at one instant; CPU from the first publish to the last acknowledgement.
run -scenario B -n 100000 -system "nats:async,$bridge+async,$bridge+sync"
# 1,000 jobs/s due at random times.
run -scenario C -rate 1000 -dur 20s -system "$bridge+async"
# Memory of pending jobs.
run -scenario M -backlog 100000 -system "$bridge+async,$bridge+async+ids"

echo
./peers -speed "$file"
