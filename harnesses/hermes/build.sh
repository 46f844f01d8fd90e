#!/bin/sh
# Builds the payload of Hermes: Python with its own loader and libraries, so that it runs in any image, and a venv.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/python.sh"
python_payload
python_packages
# A trial run, which fails for want of a model, keeps the compiled form of every module that a run imports.
cd /tmp
mkdir -p /tmp/hermes
cat >/tmp/hermes/config.yaml <<'CONFIG'
model: {default: none, provider: custom, base_url: "http://127.0.0.1:9/v1", api_key: none, context_length: 131072}
agent: {api_max_retries: 1}
CONFIG
HOME=/tmp HERMES_HOME=/tmp/hermes "$OUT/venv/bin/python3" "$OUT/venv/bin/hermes" -z none --yolo --usage-file /tmp/usage.json \
  </dev/null >/tmp/none.log 2>&1 || true
grep -q '"failed": true' /tmp/usage.json || { cat /tmp/none.log; exit 1; }
du -sh "$OUT"
