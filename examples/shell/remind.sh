#!/usr/bin/env bash
# Does one job: work.sh has its payload in NATS_REQUEST_BODY. All that is printed is the answer, without a newline, so
# everything else goes elsewhere. The exit status is not answered: what fails has to say -NAK.
set -euo pipefail

# remind stands for the work.
remind() {
	[[ $NATS_REQUEST_BODY == order* ]] && echo "reminded of $NATS_REQUEST_BODY" >>reminders.log
}

if remind &>/dev/null; then
	printf '+ACK'
else
	printf '%s' '-NAK {"reason":"cannot remind of it"}' # again, by the job's backoff
fi
