# Before the other scripts here. A git folder of our own, $own, stands for the repository's: so neither its configuration, its hooks nor
# its filters are read, whoever wrote them; only its objects are, and .gitignore and .gitattributes of the tree.
set -eu
command -v git >/dev/null || { echo "the image has no git" >&2; exit 3; }
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 LC_ALL=C

# open_own TOP OBJECTS: makes $own anew, for the tree at TOP.
open_own() {
    rm -rf "$own"
    export GIT_DIR="$own" GIT_WORK_TREE="$1" GIT_INDEX_FILE="$own/index" HOME="$own"
    git init --quiet --template= >/dev/null
    mkdir -p "$own/objects/info"
    printf '%s\n' "$2" >"$own/objects/info/alternates"
    cd "$1"
}
