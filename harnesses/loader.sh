# For builds in Debian: a runtime with its own loader and libraries, so that it runs in any image.
# Only the runtime's programs are touched; what they start later inherits nothing.

# Puts the loader, and the libraries that programs and extension modules of $OUT find in the system, into $OUT/lib.
own_libraries() {
  mkdir -p "$OUT/lib"
  find "$OUT" -type f \( -name '*.so' -o -name '*.so.*' -o -name '*.node' -o -path '*/bin/*' \) -exec ldd {} + 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\/(usr\/)?lib/ { print $3 }' | sort -u |
    while read -r library; do cp -L "$library" "$OUT/lib/"; done
}

# Has these programs use them. Runpath would not do: libraries of libraries are found by rpath only.
use_own_libraries() {
  for program in "$@"; do
    loader=$(patchelf --print-interpreter "$program")
    [ -e "$OUT/lib/$(basename "$loader")" ] || cp -L "$loader" "$OUT/lib/"
    patchelf --set-interpreter "$OUT/lib/$(basename "$loader")" --force-rpath --set-rpath "$OUT/lib" "$program"
  done
}
