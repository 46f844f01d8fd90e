#!/bin/sh
# Builds the payload of Gemini CLI: npm's package and Node with its own loader and libraries.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/node.sh"
node_payload
du -sh "$OUT"
