# make demo        build weft, run it on a recorded trace, then train with it and with DDP in a lab, and compare plans there (as root)
# make test        every test, with the race detector
# make test-torch  the PyTorch client's tests, with PYTHON (/usr/bin/python3)
# make test-torch2 the same, with PyTorch 2.6 in a Debian 13 that it makes once (as root; tools/torch2)
# make lint        gofmt, go vet, staticcheck, and the walls between packages
# make build       a static bin/weft
# make bench       every benchmark
# make fuzz        every fuzz test, for FUZZTIME each
# make pictures    the timelines of docs/policies
# make studies     the tables and charts of docs/studies.md

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10s
BENCH    ?= .
PYTHON   ?= /usr/bin/python3
DEMO     := testdata/traces/gpt-gloo-torch2.6

# Releases are the same everywhere: no cgo, no paths, no clock in the binary.
BUILD := CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: demo test test-torch test-torch2 lint build bench pictures studies fuzz clean cc

build:
	@$(BUILD) -o bin/weft ./cmd/weft

demo: build
	bin/weft inspect $(DEMO)/rank0.json.gz $(DEMO)/rank1.json.gz
	@echo
	bin/weft compare $(DEMO)/rank0.json.gz --workers 16 --link 10Gbit,25us
	@PYTHON=$(PYTHON) tools/need-torch
	@PYTHON=$(PYTHON) scripts/demo

test: cc
	CGO_ENABLED=1 go test -race -timeout 40m ./...
	go test -run 'Compare$$|Alloc' ./acceptance ./collective ./transport # the race detector finds nothing there, and allocates

test-torch: build
	@PYTHON=$(PYTHON) tools/need-torch
	cd python && WEFT_BINARY=$(CURDIR)/bin/weft $(PYTHON) -W ignore -m unittest

test-torch2: build
	@tools/torch2 >/dev/null
	tools/torch2 WEFT_BINARY=/srv/weft/bin/weft env -C python python3 -W ignore -m unittest

lint:
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w:" $$unformatted; exit 1; }
	go vet ./...
	GOOS=darwin go vet ./cmd/weft # people plan on laptops
	go tool -modfile=tools/go.mod staticcheck ./...
	go test -count=1 -run '^TestThisModule$$' ./internal/walls

bench:
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

pictures:
	go run ./scripts/pictures

studies: build
	scripts/studies

# go test -fuzz takes one test at a time, so they are listed first. Making inputs
# smaller may outlast FUZZTIME, which go test then reports as a failure: it gets
# ten tries.
fuzz:
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort -u | \
	while IFS=: read -r file func; do \
		echo "fuzzing $${func#func } in $$(dirname $$file) for $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$(dirname $$file)" || exit 1; \
	done

clean:
	rm -rf bin

# The race detector needs a C compiler and the C library's headers.
cc:
	@tools/need-cc
