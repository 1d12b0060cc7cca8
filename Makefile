# Everything a developer or CI runs. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# A recipe is one script, so an @ on its first line silences all of it.
.ONESHELL:

# Only the race detector needs cgo. All else is built without it and so shares one set of compiled packages.
export CGO_ENABLED = 0

BIN := bin/ingest-agent

# Where git does not answer (an unpacked archive) both are empty, and the binary says so.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# What can be set on the command line.
ROUNDS ?= 200
SEEDS ?= 1000
DISK ?= 64
SEND ?= 1024
RATE ?= 32
LATENCY ?= 20ms
LEAST ?= 70
SEED ?= 1
NODES ?= 1000
OWNERS ?= 1000
OWING ?= 200
OBJECTS ?= 200000
FUZZTIME ?= 20s
PKG ?= ./...
BENCH ?= .
COUNT ?= 6
ARGS ?=

# The rounds of kill -9 in `make test`.
TEST_ROUNDS := 20

# The seeds of the simulation of whole nodes in `make test`, about 14 a second.
TEST_SEEDS := 1000

# The rounds of crashes of a fleet in `make test`, about 9 s each.
FLEET_ROUNDS := 4

# Tests with Crash or Fault in their name break something at every place where it can break. They take the longest, so
# they are a part of their own, timed apart.
CRASH := Crash|Fault

# Ends a package's tests that hang, with the stacks. Far above what they take.
TEST_TIMEOUT := 8m

# Tools have a module of their own, so that their dependencies stay out of the agent's.
TOOL := go tool -modfile=tools/go.mod
RACE := CGO_ENABLED=1 $(CURDIR)/tools/race-test go test -race -count=1 -timeout=$(TEST_TIMEOUT)
PART := tools/part

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/ingest-agent, static
	go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/ingest-agent

.PHONY: run
run: build ## build and run on embedded defaults (ARGS='…' for flags)
	@printf '%s\n' '' 'Send a record from another terminal and see it arrive (Ctrl-C here stops the agent):' '' \
		"  curl -sS -H 'Content-Type: application/json' --data-binary @docs/examples/logs.json http://127.0.0.1:4318/v1/logs" \
		'  cat data/out/logs.ndjson' ''
	exec $(BIN) run $(ARGS)

.PHONY: test
test: ## all tests: unit, contract, simulation, crash images, faults, real clients and servers, kill -9, fleet, outage
	@$(PART) 'build' $(MAKE) --no-print-directory build
	$(PART) 'S3 server for tests' $(MAKE) --no-print-directory testserver
	$(PART) 'unit and contract tests' $(MAKE) --no-print-directory unit
	$(PART) 'simulation, $(TEST_SEEDS) seeds' $(MAKE) --no-print-directory simnodes SEEDS=$(TEST_SEEDS) SEED=1
	$(PART) 'crash images and faults' $(MAKE) --no-print-directory crash
	$(PART) 'real clients and servers' $(MAKE) --no-print-directory interop
	$(PART) 'kill -9, $(TEST_ROUNDS) rounds' $(MAKE) --no-print-directory kill ROUNDS=$(TEST_ROUNDS) SEED=1
	$(PART) 'fleet, $(FLEET_ROUNDS) rounds' $(MAKE) --no-print-directory fleet ROUNDS=$(FLEET_ROUNDS) SEED=1
	$(PART) 'outage longer than the disk' $(MAKE) --no-print-directory bench-outage DISK=16 SEND=96 LEAST=0
	$(PART) 'load without a peer' $(MAKE) --no-print-directory bench-self ARGS='-parts load,answer,backlog -rounds 1 -for 2s -backlog 128'

.PHONY: unit
unit: ## unit and contract tests, under the race detector (the broken simulations are a part of their own)
	$(RACE) -skip '$(CRASH)|^TestSimulationOfBrokenNodes$$' $(PKG)

.PHONY: crash
crash: ## crash images and faults at every operation
	@packages=$$(tools/packages-with 'func Test\w*($(CRASH))')
	set -x; $(RACE) -run '$(CRASH)' $$packages

.PHONY: kill
kill: build ## kill -9 under load and count what is missing (ROUNDS=200 SEED=1)
	go run ./bench/cmd/kill -seed $(SEED) -rounds $(ROUNDS) -bin $(BIN)

.PHONY: fleet
fleet: build testserver ## three agents ended at random with and without their disks, and what arrives after (ROUNDS=200 SEED=1)
	go run ./bench/cmd/fleet -seed $(SEED) -rounds $(ROUNDS) -bin $(BIN)

.PHONY: bench-outage
bench-outage: build testserver ## send SEND=1024 MiB to DISK=64 MiB while the destination is down; the bucket takes RATE=32 MiB/s, LATENCY=20ms
	go run ./bench/cmd/outage -bin $(BIN) -bucket s3 -disk $(DISK) -send $(SEND) -rate $(RATE) -latency $(LATENCY) -least $(LEAST)

.PHONY: sim
sim: simnodes ## simulated faults and schedules around the register and around whole nodes (SEEDS=1000 SEED=1)
	go test -count=1 -timeout=30m -v -run '^TestSimulation$$' ./objstore/lease -sim.seeds=$(SEEDS) -sim.first=$(SEED)

.PHONY: simnodes
simnodes:
	go test -count=1 -timeout=30m -v -run '^TestSimulation' ./agent/sim -sim.seeds=$(SEEDS) -sim.first=$(SEED)

.PHONY: scale
scale: ## what a fleet of NODES=1000 asks of its bucket: the numbers of docs/scale.md
	go test -count=1 -timeout=30m -v -run '^TestFleetRequests$$' ./agent/sim -fleet.nodes=$(NODES)

.PHONY: interop
interop: build ## the OpenTelemetry SDK and Collector in front of the agent and behind it (SEED=1)
	cd bench/interop
	$(RACE) . -agent '$(CURDIR)/$(BIN)' -seed $(SEED)

.PHONY: testserver
testserver: ## build the S3 server that tests start, once into the user's cache
	go test -count=1 ./objstore/s3/s3test

.PHONY: dry-run
dry-run: testserver ## a dry run over OWNERS=1000 owners, OWING=200, and OBJECTS=200000 objects on a real S3 server
	go test -count=1 -timeout=30m -v -run '^TestDryRunRequests$$' ./recovery -dryrun.owners=$(OWNERS) -dryrun.owing=$(OWING) -dryrun.objects=$(OBJECTS)

.PHONY: s3-cross
s3-cross: ## the tests of the S3 bucket against SeaweedFS (its first build takes ten minutes)
	INGEST_AGENT_TEST_S3=seaweedfs $(RACE) -timeout=30m -run 'Contract|Server|Crash|RequestCounts' ./objstore/s3/...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=20s
	@tools/fuzz $(FUZZTIME)

.PHONY: check
check: fmt-check vet lint tidy ## all that must hold before a commit: format, vet, lint, tidy, test, short fuzz
	@$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory fuzz FUZZTIME=5s

.PHONY: fmt
fmt: ## format the code and group its imports
	$(TOOL) golangci-lint fmt $(PKG)

.PHONY: fmt-check
fmt-check: ## fail on code that is not formatted
	@files=$$(gofmt -s -l .)
	if [[ -n $$files ]]; then printf 'not formatted, run make fmt:\n%s\n' "$$files"; exit 1; fi

.PHONY: vet
vet: ## go vet
	go vet $(PKG)

.PHONY: lint
lint: ## strict linters and the import direction (PKG=./segment/... for a part)
	@set -x; $(TOOL) golangci-lint run $(PKG)
	tools/no-sleeps

.PHONY: tidy
tidy: ## fail where go mod tidy would change a module
	@for file in $$(find . -name go.mod -not -path '*/testdata/*'); do
		echo "go -C $${file%/go.mod} mod tidy -diff"
		go -C "$${file%/go.mod}" mod tidy -diff
	done

.PHONY: bench
bench: ## micro benchmarks (BENCH=regexp PKG=./segment/...)
	go test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

.PHONY: bench-limit
bench-limit: ## the append path against a bare loop that writes and syncs the same bytes
	go run ./bench/cmd/limit $(ARGS)

.PHONY: bench-peers
bench-peers: build ## the agent against the OpenTelemetry Collector with a synced queue, in turns: the table of bench/results (ARGS='-rounds 3')
	go -C bench/peers build -trimpath -buildvcs=false -o '$(CURDIR)/bin/collector' .
	go run ./bench/cmd/versus -commit '$(VERSION)' -agent $(BIN) -collector bin/collector $(ARGS)

.PHONY: bench-self
bench-self: build ## the agent alone, as bench-peers measures it (ARGS)
	go run ./bench/cmd/versus -commit '$(VERSION)' -agent $(BIN) $(ARGS)

.PHONY: benchcmp
benchcmp: ## benchmarks of BASE=ref against the work tree (BENCH, PKG, COUNT=6)
	@BASE='$(BASE)' BENCH='$(BENCH)' PKG='$(PKG)' COUNT='$(COUNT)' tools/benchcmp

.PHONY: clean
clean: ## remove what make built (data/ stays)
	rm -rf bin
