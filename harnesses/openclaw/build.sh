#!/bin/sh
# Builds the payload of OpenClaw: npm's package and Node with its own loader and libraries.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/node.sh"
node_payload
# Its first start ends its installation, which it could not do in a payload that is read-only.
"$OUT/node/bin/node" "$OUT/app/node_modules/openclaw/openclaw.mjs" --version
test ! -e "$OUT/app/node_modules/openclaw/.openclaw-lifecycle-pending"
du -sh "$OUT"
