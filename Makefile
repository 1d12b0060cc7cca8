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
SEED ?= 1
FUZZTIME ?= 20s
PKG ?= ./...
BENCH ?= .
COUNT ?= 6
ARGS ?=

# The rounds of kill -9 in `make test`.
TEST_ROUNDS := 20

# Tests with Crash or Fault in their name break something at every place where it can break. They take the longest, so
# they are a part of their own, timed apart.
CRASH := Crash|Fault

# Ends a package's tests that hang, with the stacks. Far above what they take.
TEST_TIMEOUT := 8m

# Tools have a module of their own, so that their dependencies stay out of the agent's.
TOOL := go tool -modfile=tools/go.mod
RACE := CGO_ENABLED=1 go test -race -count=1 -timeout=$(TEST_TIMEOUT)
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
test: ## all tests: unit, contract, crash images, faults, real clients and servers, 20 rounds of kill -9
	@$(PART) 'build' $(MAKE) --no-print-directory build
	$(PART) 'S3 server for tests' $(MAKE) --no-print-directory testserver
	$(PART) 'unit and contract tests' $(MAKE) --no-print-directory unit
	$(PART) 'crash images and faults' $(MAKE) --no-print-directory crash
	$(PART) 'real clients and servers' $(MAKE) --no-print-directory interop
	$(PART) 'kill -9, $(TEST_ROUNDS) rounds' $(MAKE) --no-print-directory kill ROUNDS=$(TEST_ROUNDS) SEED=1

.PHONY: unit
unit: ## unit and contract tests, under the race detector
	$(RACE) -skip '$(CRASH)' $(PKG)

.PHONY: crash
crash: ## crash images and faults at every operation
	@packages=$$(tools/packages-with 'func Test\w*($(CRASH))')
	set -x; $(RACE) -run '$(CRASH)' $$packages

.PHONY: kill
kill: build ## kill -9 under load and count what is missing (ROUNDS=200 SEED=1)
	go run ./bench/cmd/kill -seed $(SEED) -rounds $(ROUNDS) -bin $(BIN)

.PHONY: sim
sim: ## simulated faults and schedules around the register (SEEDS=1000 SEED=1)
	go test -count=1 -timeout=30m -v -run '^TestSimulation$$' ./objstore/lease -sim.seeds=$(SEEDS) -sim.first=$(SEED)

.PHONY: interop
interop: build ## the OpenTelemetry SDK and Collector in front of the agent and behind it (SEED=1)
	cd bench/interop
	$(RACE) . -agent '$(CURDIR)/$(BIN)' -seed $(SEED)

.PHONY: testserver
testserver: ## build the S3 server that tests start, once into the user's cache
	go test -count=1 ./objstore/s3/s3test

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

.PHONY: benchcmp
benchcmp: ## benchmarks of BASE=ref against the work tree (BENCH, PKG, COUNT=6)
	@BASE='$(BASE)' BENCH='$(BENCH)' PKG='$(PKG)' COUNT='$(COUNT)' tools/benchcmp

.PHONY: clean
clean: ## remove what make built (data/ stays)
	rm -rf bin
