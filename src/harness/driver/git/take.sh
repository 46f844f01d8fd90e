# take.sh: own top objects base. Prints what differs in the tree at `top` from `base`, new files included, ignored ones not. What git can't
# take stays as it is in `base`, and is said on standard error: files that can't be read, repositories without a commit. Of other
# repositories in the tree it takes the commit.
own=$1
open_own "$2" "$3"
git read-tree "$4"
# 1: all but what was said.
git -c core.safecrlf=false -c advice.addEmbeddedRepo=false add --all --ignore-errors . || [ $? = 1 ]
git diff --cached --binary --full-index --no-ext-diff --no-textconv --no-color --no-renames "$4"
cd / && rm -rf "$own"
