#!/bin/sh
# Builds the payload of ZeroClaw from crates.io, statically linked, so that it runs in any image. Light settings: about ten minutes
# of one core instead of an hour, and its own speed does not matter beside the model's.
# Runs on the host in an empty folder; needs Rust and a C compiler. The payload is the folder $OUT.
set -eu
command -v cargo >/dev/null || { echo "cargo is missing; ZeroClaw is built from source" >&2; exit 1; }
export CARGO_TARGET_DIR="$PWD/target" CARGO_INCREMENTAL=0
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64
export CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
# With a target named, the flag is not for the build's own programs, which can't be static.
target=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-C target-feature=+crt-static" nice -n 19 cargo install $PACKAGES --root "$PWD/root" --bin zeroclaw --target "$target" \
  --locked --ignore-rust-version --no-default-features --features agent-runtime --no-track
mkdir -p "$OUT/bin"
mv "$PWD/root/bin/zeroclaw" "$OUT/bin/"
"$OUT/bin/zeroclaw" --version
