#!/bin/sh
# Builds the payload of Qwen Code: npm's package and Node with its own loader and libraries.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/node.sh"
node_payload
# It would do so itself at its first start, but for a payload that is read-only.
chmod +x "$OUT"/app/node_modules/@qwen-code/qwen-code/vendor/ripgrep/*/rg
du -sh "$OUT"
