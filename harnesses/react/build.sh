#!/bin/sh
# Builds the payload of the ReAct agent: its one file and a Python with its own loader and libraries, so that it runs in any image.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/python.sh"
python_payload
cp "$(dirname "$0")/react.py" "$OUT/"
# Keeps the compiled form of all that it imports.
"$OUT/python/bin/python3" -I "$OUT/react.py" --help >/dev/null
du -sh "$OUT"
