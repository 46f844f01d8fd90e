# take.sh: own top objects base. Prints what differs in the tree at `top` from `base`, new files included, ignored ones not.
own=$1
open_own "$2" "$3"
git read-tree "$4"
git add --all . 2>/dev/null
git diff --cached --binary --full-index --no-ext-diff --no-textconv --no-color --no-renames "$4"
cd / && rm -rf "$own"
