# What there is to do; `make` alone builds.
.PHONY: build demo test test-all test-vllm lint bench fuzz setup clean

build:
	cargo build

# A real harness in a container against a real model server, recorded, shown, exported.
demo:
	@scripts/demo

# Everything that .ci/run runs: format, lints, Rust tests, Python tests; with Docker and llama.cpp (ignored tests need one).
test: lint setup
	scripts/with-llama-server scripts/test

# Also the kills in full length, the gold test in its wide form, outages of minutes, output of 10 GB, and every harness on every wire:
# ZeroClaw is built from source first.
test-all: test
	GLEANER_TEST_ROUNDS=20 cargo test --test crash
	GLEANER_TEST_WIDE=1 scripts/with-llama-server target/venv/bin/python -m pytest -q -rs -p no:cacheprovider tests/gold
	@scripts/setup-test harnesses
	"$${CARGO_TARGET_DIR:-target}/debug/gleaner" harness check all
	GLEANER_TEST_WIDE=1 cargo test --test batch -- --include-ignored --nocapture a_batch_of_real_harnesses
	GLEANER_TEST_WIDE=1 cargo test --test outage -- --include-ignored --nocapture
	GLEANER_TEST_WIDE=1 cargo test --test hostile --test tasks -- --nocapture ten_gigabytes rewards_of_a_root
	GLEANER_TEST_WIDE=1 cargo test --test harness_wires -- --include-ignored --nocapture

# Against a real vLLM on the CPU, which is installed into target/vllm first: 6 GB, half an hour.
test-vllm: setup
	scripts/vllm-server setup
	target/venv/bin/python -m pytest -q -rs -s -p no:cacheprovider tests/vllm

lint:
	@scripts/setup build lint
	cargo fmt --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --all-targets -- -D warnings

# What must be linear; idle rollouts; a mock policy server, direct and through Gleaner; what a long rollout takes on the disk;
# rollouts beside bare containers. Prints tables.
bench:
	@scripts/setup tokenizers
	cargo bench --bench linear --bench idle --bench forest --bench parquet --bench prompt --bench proxy --bench storage --bench runner

# Coverage-guided, of all that reads foreign bytes; each target for FUZZ_SECONDS (60).
fuzz:
	scripts/fuzz

setup:
	@scripts/setup-test

# Leaves the harnesses' payloads, which stand outside the tree.
clean:
	cargo clean
