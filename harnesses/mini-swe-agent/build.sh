#!/bin/sh
# Builds the payload of mini-swe-agent: Python with its own loader and libraries, so that it runs in any image, and a venv.
# Runs as root in a container of Debian bookworm; the payload is the folder $OUT, mounted where the harness will find it.
set -eu
. "$(dirname "$0")/loader.sh"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 python3-venv patchelf ca-certificates >/dev/null

version=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
mkdir -p "$OUT/python/bin" "$OUT/python/lib" "$OUT/lib"
cp "/usr/bin/$version" "$OUT/python/bin/$version"
ln -sf "$version" "$OUT/python/bin/python3"
cp -r "/usr/lib/$version" "$OUT/python/lib/$version"
rm -rf "$OUT/python/lib/$version/test" "$OUT/python/lib/$version/__pycache__"

"/usr/bin/$version" -m venv --copies "$OUT/venv"
"$OUT/venv/bin/pip" install --quiet --no-cache-dir --no-compile --disable-pip-version-check $PACKAGES

own_libraries
for binary in "$OUT/python/bin/$version" "$OUT"/venv/bin/python3*; do
  [ -L "$binary" ] || use_own_libraries "$binary"
done
sed -i "s|^home = .*|home = $OUT/python/bin|" "$OUT/venv/pyvenv.cfg"
find "$OUT/venv" -name '*.exe' -delete

# A first run, which fails for want of a model, keeps the compiled form of every module that a run imports: the payload is read-only
# later, and each run would compile them again.
cd /tmp
HOME=/tmp MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_SILENT_STARTUP=1 LITELLM_LOCAL_MODEL_COST_MAP=True \
  OPENAI_API_KEY=none MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=1 "$OUT/venv/bin/mini" --yolo --exit-immediately --agent-class default \
  --task none --model openai/none --config mini.yaml --config model.model_kwargs.api_base=http://127.0.0.1:9/v1 \
  --config model.model_kwargs.max_retries=0 --output /tmp/none.json </dev/null >/tmp/none.log 2>&1 || true
grep -q 'Connection error' /tmp/none.json || { cat /tmp/none.log; exit 1; }
du -sh "$OUT"
