#!/usr/bin/env bash
# A worker with the `nats` command line: it runs remind.sh for each job, one after the other.
# Usage: work.sh TARGET. NATS_URL says where NATS is, if not at 127.0.0.1:4222.
set -euo pipefail
exec nats reply --queue workers "${1:?usage: work.sh TARGET}" --command "$(dirname "$0")/remind.sh"
