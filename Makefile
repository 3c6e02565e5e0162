SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

GO          ?= go
FUZZTIME    ?= 10s
BENCH       ?= .
BIN         := $(CURDIR)/bin
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# All packages but the ones that need several real servers at once.
UNIT = $$($(GO) list ./... | grep -v /integration)

# $(call need,PROGRAM,PACKAGES) installs Debian packages if PROGRAM is missing,
# and fails where that is impossible: tests never skip for want of a server.
define need
@command -v $(1) >/dev/null || { \
	echo "$(1) is missing: installing Debian's $(2)"; \
	sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	{ $$sudo apt-get update && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(2) && \
	  command -v $(1) >/dev/null; } || \
	{ echo "$(1) cannot be installed here: install it by hand, so that it is on PATH, and run this again" >&2; exit 1; }; }
endef

.PHONY: help build test test-js test-rules race fuzz bench soak soak-local soak-all bench-workers vet staticcheck vuln fmt-check tidy-check redis-server cc npm promtool

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/delaybridge
	$(GO) build -o $(BIN)/delaybridge ./cmd/bridge

test: redis-server ## run all tests; installs redis-server if it is missing
	$(GO) test -timeout 10m ./...

test-js: build npm ## run the nats.js examples against a bridge of its own; installs npm if it is missing
	@cd examples/js; \
	timeout 120 npm ci --no-fund --no-audit --no-update-notifier; \
	exec 3< <(exec $(BIN)/delaybridge dev --store local --drain 1s --id js --nats-url nats://127.0.0.1:0 --http-addr off 2>&1); \
	bridge=$$!; trap 'kill $$bridge 2>/dev/null; wait $$bridge' EXIT; \
	log=; until [[ $$log =~ msg=ready\ nats=([^ ]+) ]]; do \
		read -rt 20 log <&3 || { echo "the bridge does not start" >&2; exit 1; }; \
		echo "$$log"; \
	done; \
	export NATS_URL=$${BASH_REMATCH[1]}; timeout 60 node walk.mjs; timeout 60 node worker-check.mjs

test-rules: promtool ## check the alert rules and their tests; installs promtool if it is missing
	cd monitoring && promtool check rules rules.yaml && promtool test rules rules_test.yaml

race: redis-server cc ## run the unit tests under the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout 10m $(UNIT)

fuzz: redis-server ## run every fuzz target for FUZZTIME (10s)
	@listed=$$($(GO) test -list '^Fuzz' ./...) || { echo "$$listed"; exit 1; }; \
	targets=$$(awk '/^Fuzz/ { name[n++] = $$1 } /^ok/ { while (n) print $$2, name[--n] }' <<<"$$listed"); \
	[ -n "$$targets" ] || { echo "no fuzz targets found" >&2; exit 1; }; \
	while read -r package name; do \
		echo "== $$package $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null; \
	done <<<"$$targets"

bench: redis-server ## run the Go benchmarks that match BENCH (all)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...

# The bridges' logs go to bin/.
SOAK = DELAYBRIDGE_SOAK=1 DELAYBRIDGE_SOAK_LOG=$(BIN)/$@.log $(GO) test -v -count=1 -timeout 90m -run

soak: redis-server ## run a million jobs with a fault every few seconds (10 minutes)
	@mkdir -p $(BIN)
	$(SOAK) '^TestSoak$$' ./integration

soak-local: redis-server ## run a million jobs healthy and a million without Redis (15 minutes)
	@mkdir -p $(BIN)
	$(SOAK) '^TestSoakLocal$$' ./integration

soak-all: redis-server ## run the integration tests in their long forms (up to an hour and a half)
	@mkdir -p $(BIN)
	$(SOAK) . ./integration

bench-workers: redis-server ## measure what heartbeats and owned jobs cost, and recovery over 100 kills (5 minutes)
	@mkdir -p $(BIN)
	$(SOAK) '^Test(CostOf.*|KilledWorker|FrozenWorker|RestartWithManyJobs)$$' ./integration

vet: ## run go vet
	$(GO) vet ./...

staticcheck: ## run staticcheck
	$(GO) run $(STATICCHECK) ./...

# govulncheck exits with 3 on findings. Where its database cannot be reached
# nothing can be said, which must not stop everything else.
vuln: ## look for known vulnerabilities, if their database can be reached
	@GOBIN=$(BIN) $(GO) install $(GOVULNCHECK)
	@status=0; report=$$($(BIN)/govulncheck ./... 2>&1) || status=$$?; \
	echo "$$report"; \
	if [ $$status -ne 3 ] && grep -q 'fetching vulnerabilities' <<<"$$report"; then \
		echo "vuln: NOT CHECKED: the vulnerability database https://vuln.go.dev cannot be reached from here"; \
	else \
		exit $$status; \
	fi

fmt-check: ## fail if gofmt would change a file
	@files=$$(find . \( -name node_modules -o -name '.?*' \) -prune -o -name '*.go' -print); \
	changed=$$(gofmt -l $$files); \
	[ -z "$$changed" ] || { echo "not gofmt-ed:"; echo "$$changed"; exit 1; }

tidy-check: ## fail if go mod tidy would change go.mod or go.sum
	$(GO) mod tidy -diff

redis-server:
	$(call need,redis-server,redis-server)

npm: # with node
	$(call need,npm,npm)

promtool:
	$(call need,promtool,prometheus)

cc: # the race detector needs cgo
	$(call need,gcc,gcc libc6-dev)
