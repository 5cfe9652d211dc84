# make lists the targets. Everything that is installed goes into git-ignored .deps/, but for Debian's redis-server and Chromium.
SHELL := /bin/bash
.DEFAULT_GOAL := help
WHEELS ?= bin
PYTHON ?= python3
.PHONY: help build image image-multiarch manifests lib wheel demo test test-long check deps e2e-vllm e2e-vllm-plane e2e-vllm-long e2e-page e2e-kube bench measurements peers vram-bundle vllm-bundle sim mutants soak faults pin-images vuln clean

GOLANGCI := v2.15.0
GO       ?= go
# The binary names its commit even where GOFLAGS has -buildvcs=false, if git can tell it.
VCS       = -buildvcs=$(shell git status --porcelain >/dev/null 2>&1 && echo auto || echo false)
VERSION  ?= $(shell git describe --always --dirty)
DEPS     := $(CURDIR)/.deps
step      = @.ci/step "$(1)" $(2)

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## bin/pdrouter
	$(GO) build $(VCS) -o bin/pdrouter ./cmd/pdrouter

image: ## the image pdrouter:VERSION by docker; VERSION is git describe's
	docker build --build-arg VERSION=$(VERSION) -t pdrouter:$(VERSION) .

PLATFORMS ?= linux/amd64,linux/arm64
IMAGE     ?= pdrouter
image-multiarch: ## the image for PLATFORMS, pushed to IMAGE=REGISTRY/pdrouter, by docker buildx
	docker buildx build --platform $(PLATFORMS) --build-arg VERSION=$(VERSION) -t $(IMAGE):$(VERSION) --push .

manifests: ## render deploy/manifests from the Helm chart
	$(GO) -C internal/kubetest test -count=1 -run '^TestManifestsAreUpToDate$$' . -update

lib: ## bin/libpdkv.so with bin/pdkv.h: the KV plane as a C library
	$(GO) build -buildmode=c-shared -o bin/libpdkv.so ./kvplane/capi
	@rm -f bin/libpdkv.h
	@cp kvplane/capi/pdkv.h bin/pdkv.h

wheel: lib ## bin/pdrouter_vllm-….whl: the plane as a connector of vLLM, with the library inside
	$(PYTHON) -B kvplane/vllm/wheel.py bin/libpdkv.so $(WHEELS)

demo: ## a gateway and four engines on this machine, every answer compared
	@$(GO) run ./cmd/pdrouter demo

test: deps ## all tests, but for long walks
	$(call step,tests,$(GO) test -short -shuffle=on -p 5 -timeout 15m ./...)
	$(call step,the vLLM connector's own tests,$(PYTHON) -B -m unittest discover -q -s kvplane/vllm/tests -t kvplane/vllm)
	$(call step,Helm chart and manifests,$(GO) -C internal/kubetest test -count=1 ./...)

test-long: deps ## all tests with the race detector, then the long walks without it: 1,000 traces, each mutant, 10,000 conversations that move
	$(call step,tests with the race detector,$(GO) test -race -shuffle=on -p 5 -timeout 40m ./...)
	$(call step,long walks,env KVPLANE_SEEDS=all $(GO) test -count=1 -run '^(TestSimulator.*|TestMutants)$$' ./kvplane/agent)
	$(call step,conversations that move,env CONVERSATIONS=10000 $(GO) test -count=1 -run '^TestMovedConversationsEqual$$' ./router)

check: .deps/golangci-lint-$(GOLANGCI) ## gofmt, go vet, golangci-lint, a build without cgo
	$(call step,gofmt,.ci/gofmt)
	$(call step,go vet,$(GO) vet -tags e2e ./...)
	$(call step,golangci-lint,.deps/golangci-lint-$(GOLANGCI) run)
	$(call step,build without cgo,env CGO_ENABLED=0 $(GO) build $(VCS) -o bin/pdrouter ./cmd/pdrouter)

deps: ## install what the tests need: NIXL, redis-server, promtool, the openai client, SGLang's router
	$(call step,python3,internal/deps/python.sh)
	$(call step,NIXL wheel,internal/deps/nixl.sh)
	$(call step,redis-server,internal/deps/redis.sh)
	$(call step,promtool,internal/deps/promtool.sh)
	$(call step,openai client,internal/deps/openai.sh)
	$(call step,SGLang router,internal/deps/sglang.sh)

e2e-vllm: ## stock vLLM (CPU build) behind pdrouter, push and pull
	$(call step,python3,internal/deps/python.sh)
	$(call step,NIXL wheel,internal/deps/nixl.sh)
	$(call step,vLLM,internal/deps/vllm.sh)
	$(call step,stock vLLM end to end,.ci/failed $(GO) test -tags e2e -run TestStockVLLM -count=1 -v -timeout 28m ./internal/e2e/)

e2e-vllm-plane: ## vLLM (CPU build) on pdrouter's own plane
	$(call step,python3,internal/deps/python.sh)
	$(call step,vLLM,internal/deps/vllm.sh)
	$(call step,the plane inside vLLM end to end,.ci/failed $(GO) test -tags e2e -run TestVLLMPlane -count=1 -v -timeout 28m ./internal/e2e/)

e2e-vllm-long: ## vLLM (CPU build): prompts of 30,000 tokens, three engines of either role under the policy cost, 300 conversations that move, predicted first tokens; not in CI
	$(call step,python3,internal/deps/python.sh)
	$(call step,NIXL wheel,internal/deps/nixl.sh)
	$(call step,vLLM,internal/deps/vllm.sh)
	$(call step,more of vLLM,.ci/failed $(GO) test -tags e2e -run 'TestVLLM(LongPrompts|EitherRole|Conversations|PredictsFirstTokens)' -count=1 -v -timeout 60m ./internal/e2e/)

e2e-page: ## the page at /ui in Chromium, in front of a fleet of processes
	$(call step,chromium,internal/deps/chromium.sh)
	$(call step,the page in a browser,$(GO) -C internal/uitest test -count=1 -timeout 4m ./...)

e2e-kube: ## pods of a real kube-apiserver behind pdrouter: rollouts, deletions, an API server that dies
	$(call step,kube-apiserver and etcd,internal/deps/kube.sh)
	$(call step,Kubernetes end to end,.ci/failed $(GO) test -tags e2e -run '^TestKubernetes$$' -count=1 -v -timeout 10m ./cmd/pdrouter/)

bench: build ## measure the gateway beside a baseline proxy and the plane beside this machine, in one run
	bin/pdrouter bench

measurements: ## write docs/measurements from the reports in its folder data
	$(GO) run ./bench/page docs/measurements

peers: ## install what stands beside the gateway in bench: nginx, haproxy, other routers
	$(call step,python3,internal/deps/python.sh)
	$(call step,peers,internal/deps/peers.sh)

vram-bundle: ## pack the plane's suites for a GPU machine without network: bin/vram-bundle.tar.gz
	$(call step,NIXL wheel,internal/deps/nixl.sh)
	$(call step,bundle,internal/deps/vram-bundle.sh)

vllm-bundle: lib ## pack the connector and a trial of it for a machine with vLLM, one GPU, no network: bin/vllm-bundle.tar.gz
	$(call step,NIXL wheel,internal/deps/nixl.sh)
	$(call step,python3,internal/deps/python.sh)
	$(call step,vLLM,internal/deps/vllm.sh)
	$(call step,bundle,internal/deps/vllm-bundle.sh)

SECONDS := 60
sim: ## play the KV plane in a simulated world: 1,000 known traces, then new seeds for SECONDS=60
	KVPLANE_SEEDS=all $(GO) test -run '^TestSimulatorTraces$$' -count=1 -v ./kvplane/agent/
	KVPLANE_SIM=$(SECONDS)s $(GO) test -run '^TestSimulator$$' -count=1 -v -timeout 0 ./kvplane/agent/

mutants: ## how many seeds the simulator needs to find each wrong version of the KV plane
	KVPLANE_MUTANTS=20 $(GO) test -run '^TestMutants$$' -count=1 -v -timeout 0 ./kvplane/agent/

SOAK := 10m
soak: ## engines killed, clients that leave, configurations that change, conversations that move, each for SOAK=10m: nothing lost, nothing grows
	PDROUTER_SOAK=$(SOAK) $(GO) test -run '^TestSoak(Conversations)?$$' -count=1 -v -timeout 0 ./cmd/pdrouter/

faults: ## every fault that tests provoke: row, what was answered and counted, result
	$(GO) test -json -count=1 -run '^TestFault' ./router/... ./auth/... ./metadata/... ./internal/background ./internal/limits ./internal/redisdb ./kvplane/... ./internal/gateway ./internal/refengine/... ./cmd/pdrouter | $(GO) run ./internal/faults

pin-images: ## pin the base images to the digests that their tags have now; needs crane or docker buildx
	internal/deps/pin-images.sh

vuln: ## govulncheck; needs its database
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

clean: ## remove what was built, keep what was installed
	rm -rf bin

.deps/golangci-lint-$(GOLANGCI):
	$(call step,golangci-lint $(GOLANGCI),.ci/tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint $(GOLANGCI))
