# `make help` explains the targets.

SECONDS ?= 10
SEEDS ?= 2000
GROUPS ?= 3000
FIRST ?= 1
# How many of these worlds `make test` runs: the rest of `make test-all` runs those behind them.
QUICK_SEEDS = 300
# CPU seconds of the builds of `make test`, above 1.3 times which they fail; empty: no limit.
BUILD_BUDGET ?=
SIM_BUDGET ?=
TEST ?=
NAME ?=
KILLS ?= 1000
TARGETS ?=
PYNVMEOF ?=
BLKTESTS ?=
DESTROY ?=
CARGO ?= cargo
# A failed end-to-end test explains itself; the way through its own code is noise.
export RUST_LIB_BACKTRACE = 0

.DEFAULT_GOAL := help
# What the tests run is the profile dev, with assertions on, and one build for all of them.
BUILD = $(CARGO) test --locked --workspace --no-run
# In `make test` clippy is the compiler of that build: to look at everything first, and then to build it, takes minutes more.
LINTED = RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
# The programs that tests run: what else `cargo test -p lunet-e2e` needs.
PROGRAMS = $(CARGO) build --locked -p lunet -p lunet-tools
# The same and one suite, with the features of all three, so that nothing is compiled twice.
ONE = -p lunet -p lunet-tools -p lunet-e2e
# Suites that need a cluster or wait long: `test = false` in tests/Cargo.toml. Single tests of that kind are `#[ignore]`.
LONG_SUITES = $(shell awk '/^\[/ {suite = /^\[\[test/} suite && /^name/ {gsub(/"/, "", $$3); name = $$3} suite && /^test = false/ {print "--test", name}' tests/Cargo.toml)
BUILT = LUNET_BIN=$(CURDIR)/target/debug/lunet LUNET_LAB_PROGRAMS=$(CURDIR)/target/debug

.PHONY: help run install packages test-packages site web test test-all test-rest test-host one quick-tests quick-sim long-tests long-sim lab-tests checked build-tools lab lab-guest lab-zfs test-lab test-ha test-ceph test-proxmox interoperability test-kills test-scale bench bench-lab bench-transports conformance conformance-nvme sim sim-unit sim-worlds sim-groups fuzz fuzz-long lint clean prepare

help: ## show this list
	@echo "make <target>:"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 20

run: ## build lunet and serve its embedded default: one volume, 127.0.0.1:3260; the tools are built meanwhile
	@scripts/install-missing build
	$(CARGO) build --locked --release -p lunet
	@scripts/serve

PREFIX ?= /usr/local

install: ## build and install below PREFIX (default /usr/local), with DESTDIR before every path
	@scripts/install-missing build
	$(CARGO) build --locked --release -p lunet -p lunet-tools
	packaging/install target/release/lunet "$(PREFIX)" "$(DESTDIR)"

packages: ## build tarball, deb, rpm, symbols, SBOM and checksums into target/package/out; ARCH="x86_64 aarch64"
	packaging/package $(ARCH)

site: ## build the documentation as a site without a server (mdbook), into target/site
	packaging/site/build target/site

test-packages: ## install, use, upgrade, remove and purge the packages of `make packages`: in trees of Debian, then the deb in guests with systemd (root, an hour)
	packaging/test
	packaging/rpm/test
	packaging/guest/test

# The simulator's build and worlds run beside the tests of this machine: much of these is waiting.
test: ## for every change: lint, unit tests, short fuzzing, simulated worlds, real clients, the page in a browser; at most 15 minutes of two processors
	@scripts/install-missing test
	@$(MAKE) --no-print-directory -k -j2 quick-tests quick-sim

test-all: ## `make test`, and then what emulates a processor or waits long: the lab, long suites and worlds, licences (root; an hour of two processors)
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

# Of two jobs the third begins when the lab is done.
test-rest: prepare ## the second part of `make test-all`
	@$(MAKE) --no-print-directory -k -j2 long-tests lab-tests long-sim

test-host: ## `make test-all` without the lab; needs no root
	@$(MAKE) --no-print-directory test
	@scripts/install-missing
	@$(MAKE) --no-print-directory -k -j2 long-tests long-sim

one: ## build what one suite of tests/ needs, and run it: TEST=access, or of its tests those with a name: TEST=access NAME=chap
	@[ -n "$(TEST)" ] || { echo "make one: say which suite: make one TEST=access" >&2; exit 1; }
	$(CARGO) build --locked $(ONE) --bin lunet --bin lunet-tools --test $(TEST)
	$(CARGO) test --locked $(ONE) --test $(TEST) -- $(NAME)

# Libraries whose documentation has no examples say so in their manifests (`doctest`): to look for them there takes minutes.
quick-tests: checked
	$(BUILT) $(LINTED) scripts/limited 20 $(CARGO) test --locked --no-fail-fast --workspace --tests
	$(LINTED) $(CARGO) test --locked -q --doc --workspace
	web/check
	$(BUILT) scripts/limited 8 web/browser main

quick-sim:
	scripts/cpu-time "build of the simulator" "$(SIM_BUDGET)" sh -c "cd sim && $(CARGO) test --locked -q --workspace --no-run"
	@$(MAKE) --no-print-directory sim SEEDS=$(QUICK_SEEDS)

long-tests: checked
	scripts/licences
	$(LINTED) $(BUILD) $(LONG_SUITES)
	$(BUILT) $(LINTED) scripts/limited 25 $(CARGO) test --locked --no-fail-fast --workspace $(LONG_SUITES)
	$(BUILT) $(LINTED) scripts/limited 8 $(CARGO) test --locked --no-fail-fast --workspace --tests -- --ignored
	$(BUILT) scripts/limited 15 web/browser
	$(BUILT) scripts/limited 8 tests/api-fuzz

long-sim:
	nice scripts/limited 20 $(MAKE) --no-print-directory sim-worlds FIRST=$$(($(QUICK_SEEDS) + 1)) SEEDS=$$(($(SEEDS) - $(QUICK_SEEDS)))

lab-tests: checked lab-guest
	$(BUILT) LAB_SHORT=1 scripts/limited 55 nice lab/test

checked: build-tools
	scripts/lint
	scripts/warnings-are-errors $(LINTED)
	$(LINTED) scripts/cpu-time "build of the tests" "$(BUILD_BUDGET)" $(BUILD)

build-tools:
	@scripts/install-missing build

lab: lab-guest lab-zfs ## build the lab's guests: Debian kernels with real initiators and ZFS (root; cached)
	LAB_RELEASE=trixie nice lab/image

lab-guest: prepare
	nice lab/image
	nice lab/qemu

lab-zfs: prepare
	nice lab/zfs

test-lab: prepare ## run the lab's suites in the guest (root): all, or SUITE=multipath, or SUITE=multipath TEST=cut
	$(LINTED) $(BUILD)
	$(BUILT) lab/test "$(SUITE)" "$(TEST)"

test-ha: ## move, kill, freeze and fence lunet in a cluster of two nodes with Pacemaker, under load (root; 3 minutes); NODES=guests: two guests of the lab with DRBD (15 minutes)
	$(PROGRAMS)
	LUNET_BIN=$(CURDIR)/target/debug/lunet lab/ha/run $(NODES)

test-ceph: prepare ## images and failover groups on a real cluster of three OSDs, with the long tests; needs Ceph's packages (15 minutes). LUNET_E2E_FAILOVERS=200 changes the owner of a group so often under load
	$(PROGRAMS)
	LUNET_BIN=$(CURDIR)/target/debug/lunet LUNET_E2E_LONG=1 $(CARGO) test --locked -p lunet-e2e --test ceph --test groups --test failover

test-proxmox: prepare ## run the plugin for Proxmox VE in the lab's guest, with real open-iscsi, dm-multipath and NVMe/TCP (root, Debian 12)
	$(PROGRAMS)
	LUNET_BIN=$(CURDIR)/target/debug/lunet lab/proxmox

test-scale: ## 10,000 sessions, 1,000 LUNs, 8 shards, 1,000 changes: what that costs, over loopback; fails beyond its bounds (root, 5 minutes)
	$(PROGRAMS) --release
	$(CARGO) run --locked --release -p xtask -- scale

interoperability: ## run the lab's suites against lunet and against LIO (root); writes docs/interoperability.md
	$(BUILD)
	-$(BUILT) LAB_ROUNDS=5 lab/test all
	-$(BUILT) LAB_ROUNDS=5 LAB_TARGET=lio lab/test all
	lab/table

test-kills: prepare ## kill the server KILLS times (default 1000) while what it serves changes
	$(PROGRAMS) --release
	LUNET_E2E_KILLS=$(KILLS) $(CARGO) test --locked -p lunet-e2e --test kills -- --nocapture

bench: prepare ## compare with tgt, and with TARGETS="name=iscsi://...", on this machine (root, two cores, < 15 min); writes docs/benchmarks/
	$(PROGRAMS) --release
	$(CARGO) run --locked --release -p xtask -- bench $(TARGETS:%=--target %) $(DESTROY:%=--destroy %)

bench-transports: prepare ## compare NVMe over TCP with iSCSI on one volume, on this machine (two cores, 15 min); writes docs/benchmarks/transports.md
	$(PROGRAMS) --release
	$(CARGO) run --locked --release -p xtask -- transports --rounds 5 --seconds 1 --out docs/benchmarks/transports.md

conformance: prepare ## run libiscsi's own test suite; writes docs/conformance.md
	$(PROGRAMS) --release
	$(CARGO) run --locked --release -p xtask -- conformance

conformance-nvme: prepare ## run other projects' NVMe suites: PYNVMEOF=DIR, BLKTESTS=DIR (root) with their sources, TRANSPORTS=rdma; writes docs/conformance-nvme.md
	$(PROGRAMS) --release
	$(CARGO) run --locked --release -p xtask -- conformance-nvme $(PYNVMEOF:%=--pynvmeof %) $(BLKTESTS:%=--blktests %) $(TRANSPORTS:%=--transport %)

bench-lab: prepare ## compare with LIO and nvmet in the guest, seven rounds: over ZFS, iSER, NVMe/TCP, NVMe/RDMA (root, a quiet machine)
	$(PROGRAMS) --release
	LAB_ROUNDS=7 lab/test recipe
	LAB_ROUNDS=7 lab/test iser-speed
	LAB_ROUNDS=7 lab/test nvme-speed
	LAB_ROUNDS=7 lab/test nvme-rdma-speed

sim: ## run SEEDS simulated worlds of the whole server (default 2000), from FIRST on; `cd sim && cargo run -- --story SEED` shows one; and GROUPS of failover groups (default 3000; 100000 take two minutes)
	@$(MAKE) --no-print-directory sim-unit
	@$(MAKE) --no-print-directory sim-worlds
	@$(MAKE) --no-print-directory sim-groups

sim-unit:
	cd sim && $(CARGO) test --locked -q --workspace

sim-worlds:
	cd sim && $(CARGO) run --locked -q -- --seeds $(SEEDS) --first $(FIRST)

sim-groups:
	cd sim && $(CARGO) run --locked -q -p lunet-sim-gateways -- --seeds $(GROUPS) --first $(FIRST)

fuzz: ## fuzz each parser for SECONDS (default 10), guided by coverage, with a build of its own
	$(MAKE) -C fuzz -j2 -O fuzz SECONDS=$(SECONDS)

fuzz-long: ## fuzz each parser for ten minutes, and keep what that reached in fuzz/kept/
	CARGO_PROFILE_RELEASE_OPT_LEVEL=2 $(MAKE) -C fuzz fuzz SECONDS=600
	$(MAKE) -C fuzz keep

web: prepare ## rebuild the page, compare it with web/dist, and test it in Chromium
	web/check
	cd web && npm test

lint: prepare ## format check, clippy, licences and advisories of the dependencies
	scripts/lint
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --workspace $(LONG_SUITES) -- -D warnings
	scripts/licences

clean: ## remove what was built
	$(CARGO) clean

prepare:
	@scripts/install-missing
