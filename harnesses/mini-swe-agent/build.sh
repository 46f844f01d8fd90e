#!/bin/sh
# Builds the payload of mini-swe-agent: Python with its own loader and libraries, so that it runs in any image, and a venv.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/python.sh"
python_payload
# Half a gigabyte that only its benchmark runner needs.
python_packages datasets pyarrow pandas numpy
# A trial run, which fails for want of a model, keeps the compiled form of every module that a run imports.
cd /tmp
HOME=/tmp MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_SILENT_STARTUP=1 LITELLM_LOCAL_MODEL_COST_MAP=True \
  OPENAI_API_KEY=none MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=1 "$OUT/venv/bin/python3" "$OUT/venv/bin/mini" --yolo --exit-immediately \
  --agent-class default --task none --model openai/none --config mini.yaml --config model.model_kwargs.api_base=http://127.0.0.1:9/v1 \
  --config model.model_kwargs.max_retries=0 --output /tmp/none.json </dev/null >/tmp/none.log 2>&1 || true
grep -q 'Connection error' /tmp/none.json || { cat /tmp/none.log; exit 1; }
du -sh "$OUT"
