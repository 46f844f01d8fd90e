#!/bin/sh
# Builds the payload of OpenCode: the binary of npm's package, which needs glibc and nothing else.
# Runs on the host in an empty folder; the payload is the folder $OUT.
set -eu
npm install --prefix "$PWD/npm" --no-audit --no-fund --ignore-scripts $PACKAGES
mkdir -p "$OUT/bin"
# Of two, the one that runs on any processor.
for binary in "$PWD"/npm/node_modules/opencode-linux-*/bin/opencode; do
  case $binary in
    *-baseline/*) ;;
    *) [ ! -e "$OUT/bin/opencode" ] || continue ;;
  esac
  mv "$binary" "$OUT/bin/opencode"
done
"$OUT/bin/opencode" --version
