# Every target says what it does after ##; `make help` lists them.
GO ?= go
SUITE ?= routing
FUZZTIME ?= 30s
# Outside the tree, beside the lab's parts.
BUILD ?= $(or $(XDS_LAB_CACHE),$(HOME)/.cache/xds-server-lab)/tree

# Packages whose tests run real parts do so one after the other, so that no
# control plane starves another.
packages = $(shell $(GO) list ./...)
suites = $(filter xds-server/test/e2e/routing xds-server/test/e2e/discovery,$(packages))
lab_packages = $(filter-out $(suites),$(filter xds-server/test/% %/integration,$(packages)))
unit_packages = $(filter-out $(lab_packages) $(suites),$(packages))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## run a mixed-version control plane and show what works; ONCE=1 ends by itself
	$(GO) run ./test/demo $(if $(ONCE),-once)

# Tests get parts by themselves too, but go test would show nothing of it.
.PHONY: test
test: parts ## run every unit and lab test, and every end-to-end suite but the ten minutes of TestManyDefinitions
	$(GO) test -timeout 15m $(unit_packages)
	$(GO) test -timeout 30m -p 1 $(lab_packages)
	$(MAKE) --no-print-directory e2e SUITE=routing
	$(MAKE) --no-print-directory e2e SUITE=discovery ARGS=-test.skip=TestManyDefinitions

.PHONY: e2e
e2e: ## run one end-to-end suite on the lab: SUITE=routing or discovery
	@mkdir -p $(BUILD)
	@$(GO) test -c -ldflags=-w -o $(BUILD)/e2e-$(SUITE) ./test/e2e/$(SUITE)
	@cd test/e2e/$(SUITE) && $(BUILD)/e2e-$(SUITE) -test.timeout 40m $(ARGS)

.PHONY: parts
parts: ## get etcd, kube-apiservers, kubectl, Helm, Envoy and grpcurl into the lab's cache
	@$(GO) run ./test/lab/parts

.PHONY: lint
lint: ## check the code with golangci-lint, which is built on first use
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.13.2 run ./...

.PHONY: fuzz
fuzz: ## run every fuzz test for FUZZTIME (30s)
	@$(GO) list -f '{{.Dir}}' ./... | while read -r dir; do \
	  grep -ho '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go 2>/dev/null | sed 's/^func //' | while read -r f; do \
	    echo "$$dir $$f"; $(GO) test "$$dir" -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) || exit 1; \
	  done || exit 1; \
	done
