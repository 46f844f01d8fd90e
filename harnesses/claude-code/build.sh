#!/bin/sh
# Builds the payload of Claude Code: the binary of npm's package, which needs glibc and nothing else.
# Runs on the host in an empty folder; the payload is the folder $OUT.
set -eu
npm install --prefix "$PWD/npm" --no-audit --no-fund --ignore-scripts $PACKAGES
mkdir -p "$OUT/bin"
mv "$PWD"/npm/node_modules/@anthropic-ai/claude-code-linux-*/claude "$OUT/bin/"
"$OUT/bin/claude" --version
