# base.sh: own workdir commit. Says where the repository of a working folder is, where its objects are, and what stands there now:
# the given commit; else the checked out one if nothing differs from it, or the tree of all that is there.
own=$1 commit=$3
cd "$2"
repository() { git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; }
top=$(repository rev-parse --show-toplevel 2>/dev/null) || { echo "$2 is in no git repository" >&2; exit 4; }
cd "$top"
objects=$(repository rev-parse --git-path objects)
index=$(repository rev-parse --git-path index)
objects=$(cd "$objects" && pwd)
head=$(repository rev-parse --verify --quiet "${commit:-HEAD}^{commit}") || { echo "$top has no commit ${commit:-yet}" >&2; exit 5; }
if [ -z "$commit" ]; then
    [ -f "$index" ] && index=$(cd "$(dirname "$index")" && pwd)/$(basename "$index")
    open_own "$top" "$objects"
    # What the repository knows of its files' times saves reading them all.
    [ -f "$index" ] && cp "$index" "$own/index" || git read-tree "$head"
    # New objects go to the repository itself, so that they are still there when the harness has ended.
    GIT_OBJECT_DIRECTORY="$objects" git -c core.trustctime=false -c core.checkStat=minimal add --all .
    tree=$(GIT_OBJECT_DIRECTORY="$objects" git write-tree)
    [ "$tree" = "$(git rev-parse "$head^{tree}")" ] || head=$tree
    cd / && rm -rf "$own"
fi
printf '%s\n' "$top" "$objects" "$head"
