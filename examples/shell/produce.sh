#!/usr/bin/env bash
# Schedules jobs with the `nats` command line: after a delay, at a time; moves one and cancels another.
# Usage: produce.sh TARGET. NATS_URL says where NATS is, if not at 127.0.0.1:4222.
set -euo pipefail
target=${1:?usage: produce.sh TARGET}

# ask SUBJECT BODY [FLAG]... prints the answer. `nats request` ends with 0 also when that is an error, this does not.
ask() {
	local answer
	answer=$(nats request --raw "$@")
	echo "$answer"
	[[ $answer == '{'* && $answer != *'"error":'* ]]
}

ask "delay.in.1s.$target" "order 17"

# The id makes it harmless to schedule the same job again. Delay-* headers control the delivery.
ask "delay.to.$target" "order 18" -H Delay-In:1h -H Nats-Msg-Id:order-18 -H Delay-Max-Attempts:3
ask delay.api.reschedule '{"id":"order-18","in":"2s"}'

ask "delay.at.20300101T000000Z.$target" "happy new year" -H Nats-Msg-Id:year-2030
ask delay.api.cancel '{"id":"year-2030"}'
