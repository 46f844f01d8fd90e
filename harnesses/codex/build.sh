#!/bin/sh
# Builds the payload of Codex: the static binary of npm's package, and the ripgrep and sandbox binaries that it brings.
# Runs on the host in an empty folder; the payload is the folder $OUT.
set -eu
npm install --prefix "$PWD/npm" --no-audit --no-fund $PACKAGES
for vendor in "$PWD"/npm/node_modules/@openai/codex-linux-*/vendor/*-linux-musl; do
  mkdir -p "$OUT/codex-resources"
  mv "$vendor/bin" "$vendor/codex-path" "$vendor/codex-package.json" "$OUT/"
  if [ -e "$vendor/codex-resources/bwrap" ]; then mv "$vendor/codex-resources/bwrap" "$OUT/codex-resources/"; fi
done
"$OUT/bin/codex" --version
