# For builds in Debian: a harness in Python, with its own loader and libraries.
. "$(dirname "$0")/loader.sh"

# Puts Debian's Python into $OUT as python/bin/python3. It finds its library beside itself.
python_payload() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends python3 python3-venv patchelf ca-certificates >/dev/null
  python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  mkdir -p "$OUT/python/bin" "$OUT/python/lib"
  cp "/usr/bin/$python" "$OUT/python/bin/$python"
  ln -sf "$python" "$OUT/python/bin/python3"
  cp -r "/usr/lib/$python" "$OUT/python/lib/$python"
  (cd "$OUT/python/lib/$python" && rm -rf test idlelib turtledemo lib2to3 ensurepip config-*)
  finish_python
}

# Puts a venv with $PACKAGES into $OUT as venv, without those of its packages that are named here; its programs are to be started by
# venv/bin/python3. The versions of all that they need stand in the harness's constraints.txt (`pip freeze` in a venv writes one).
python_packages() {
  "/usr/bin/$python" -m venv --copies "$OUT/venv"
  "$OUT/venv/bin/pip" install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
    --constraint "$(dirname "$0")/constraints.txt" $PACKAGES
  "$OUT/venv/bin/pip" uninstall --quiet --yes "$@" pip
  sed -i "s|^home = .*|home = $OUT/python/bin|" "$OUT/venv/pyvenv.cfg"
  # What is only for those who develop the packages, and for Windows.
  find "$OUT/venv" \( -name '*.exe' -o -name '*.pyi' \) -delete
  find "$OUT/venv" -type d -name tests -path '*-packages/*/*' -prune -exec rm -rf {} +
  finish_python
}

# Has Python use libraries of its own, and keeps the compiled form of no module but those that a trial run imports: the payload
# is read-only later.
finish_python() {
  own_libraries
  for binary in "$OUT"/python/bin/python3.* "$OUT"/venv/bin/python3*; do
    [ -L "$binary" ] || [ ! -e "$binary" ] || use_own_libraries "$binary"
  done
  find "$OUT" -type d -name __pycache__ -prune -exec rm -rf {} +
}
