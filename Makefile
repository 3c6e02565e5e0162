SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

GO          ?= go
FUZZTIME    ?= 10s
BENCH       ?= .
BIN         := $(CURDIR)/bin
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# All packages but the ones that run programs against real servers.
UNIT = $$($(GO) list ./... | grep -vE '/(integration|examples)')

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

.PHONY: help build test test-js picture test-rules test-charts image-context image test-image image-all race fuzz bench soak soak-local soak-all bench-workers vet staticcheck vuln fmt-check tidy-check redis-server cc npm dot promtool buildah

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
	export NATS_URL=$${BASH_REMATCH[1]}; timeout 60 node walk.mjs; timeout 120 node check.mjs

picture: dot ## draw docs/picture.svg from docs/picture.dot; installs graphviz if it is missing
	dot -Tsvg docs/picture.dot -o docs/picture.svg

test-rules: promtool ## check the alert rules and their tests; installs promtool if it is missing
	cd monitoring && promtool check rules rules.yaml && promtool test rules rules_test.yaml

test-charts: promtool ## render the Helm charts and check what comes out; installs promtool if it is missing
	cd charts && $(GO) vet . && $(GO) test -timeout 10m .

# The image holds the program alone (see Dockerfile), and is the same each time for
# one commit and VERSION. buildah needs no engine, no other image and no network.
ARCH              ?= $(shell $(GO) env GOHOSTARCH)
VERSION           ?= $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION          ?= $(shell $(GIT) rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell $(GIT) log -1 --format=%ct 2>/dev/null || echo 0)
GIT                = git -c safe.directory='*' # the clone may belong to another user
BUILDAH            = BUILDAH_ISOLATION=chroot buildah --storage-driver vfs --root $(BIN)/containers/root --runroot $(BIN)/containers/run
BUILD_IMAGE        = $(BUILDAH) bud --quiet --identity-label=false --platform linux/$(ARCH) --timestamp $(SOURCE_DATE_EPOCH) \
	--build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --tag delaybridge:$(VERSION) --file Dockerfile $(BIN)/image

image-context: ## cross-compile the program for ARCH to bin/image, of which an image is built
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -buildid= -X main.release=$(VERSION)' \
		-o $(BIN)/image/linux/$(ARCH)/delaybridge ./cmd/bridge

image: image-context buildah ## build the image for ARCH (this machine's) into bin/delaybridge-ARCH.tar; installs buildah if it is missing
	@$(BUILDAH) rmi --all --force >/dev/null
	$(BUILD_IMAGE) >$(BIN)/image/$(ARCH).id
	@rm -f $(BIN)/delaybridge-$(ARCH).tar
	$(BUILDAH) push --quiet delaybridge:$(VERSION) docker-archive:$(BIN)/delaybridge-$(ARCH).tar:delaybridge:$(VERSION)

# One bridge runs with the image as its root and nothing else, not even /proc; the
# demo, which starts itself again, as in a container.
test-image: image ## look at the image, and run the program in it, as root
	@complain() { echo "test-image: $$1" >&2; exit 1; }; \
	[ "$$($(BUILD_IMAGE))" = "$$(cat $(BIN)/image/$(ARCH).id)" ] || complain "built twice, it is two different images"; \
	seen=$$($(BUILDAH) inspect --type image --format '{{with .OCIv1}}{{.Architecture}} {{with .Config}}{{.User}} {{.Entrypoint}} {{.Cmd}} {{.WorkingDir}} {{.Volumes}} {{index .Labels "org.opencontainers.image.version"}}{{end}}{{end}}' delaybridge:$(VERSION)); \
	[ "$$seen" = "$(ARCH) 65532:65532 [/usr/bin/delaybridge] [serve] /data map[/data:{}] $(VERSION)" ] || complain "its configuration is $$seen"; \
	container=$$($(BUILDAH) from delaybridge:$(VERSION)); root=$$($(BUILDAH) mount "$$container"); \
	seen=$$(cd "$$root"; find . -mindepth 1 -printf '%p %m %U:%G\n' | sort | xargs); \
	[ "$$seen" = "./data 755 65532:65532 ./usr 755 0:0 ./usr/bin 755 0:0 ./usr/bin/delaybridge 755 0:0" ] || complain "it holds $$seen"; \
	exec 3< <(TZ=Asia/Tokyo exec chroot --userspec=65532:65532 "$$root" /usr/bin/delaybridge dev --store local --data-dir /data/jobs --nats-url nats://127.0.0.1:0 --http-addr off 2>&1); \
	bridge=$$!; trap 'kill $$bridge 2>/dev/null; wait $$bridge' EXIT; \
	log=; until [[ $$log == *+09:00*msg=ready*data_dir=/data/jobs* ]]; do \
		read -rt 30 log <&3 || complain "a bridge does not start in it, with its own time zones and in /data"; \
		echo "$$log"; \
	done; \
	trap - EXIT; kill $$bridge; wait $$bridge || complain "a bridge does not stop in order"; \
	$(BUILDAH) run "$$container" -- /usr/bin/delaybridge version; \
	$(BUILDAH) run "$$container" -- /usr/bin/delaybridge demo | tail -1

# Both architectures are built of two copies of the sources, of one with an empty cache.
image-all: ## build the images for amd64 and arm64, and check that they can be reproduced (10 minutes)
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	mkdir "$$work/one" "$$work/another"; \
	tar --exclude=./bin --exclude=./.git --exclude=node_modules -c . | tee >(tar -x -C "$$work/another") | tar -x -C "$$work/one"; \
	commit=(VERSION=$(VERSION) REVISION=$(REVISION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH)); \
	for arch in amd64 arm64; do \
		$(MAKE) -C "$$work/one" image ARCH=$$arch "$${commit[@]}"; \
		GOCACHE=$$work/cache $(MAKE) -C "$$work/another" image ARCH=$$arch "$${commit[@]}"; \
		cmp "$$work"/{one,another}/bin/image/$$arch.id; \
		mkdir -p $(BIN); cp "$$work/one/bin/delaybridge-$$arch.tar" $(BIN)/; \
	done

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

dot:
	$(call need,dot,graphviz)

buildah:
	$(call need,buildah,buildah)

cc: # the race detector needs cgo
	$(call need,gcc,gcc libc6-dev)
