# tests.sh: top base test-patch files... Puts files back as they are in `base`, removes those that are not in it, and does so with every
# conftest.py, which decides for all tests; then applies the test patch, if it is not empty.
cd "$2"
base=$3 patch=$4
shift 4
repository() { git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; }
for path in "$@"; do
    if repository cat-file -e "$base:$path" 2>/dev/null; then
        repository checkout --quiet "$base" -- "$path"
    else
        repository rm --quiet --force --cached --ignore-unmatch -- "$path"
        repository clean --quiet -ffdx -- "$path"
    fi
done
repository rm --quiet --force --cached --ignore-unmatch -- ':(glob)**/conftest.py'
repository clean --quiet -ffdx -- ':(glob)**/conftest.py'
repository ls-tree -r --name-only -z "$base" | grep -zE '(^|/)conftest\.py$' | xargs -0 -r git -c safe.directory='*' -c core.hooksPath=/dev/null checkout --quiet "$base" --
[ -s "$patch" ] || exit 0
repository apply --whitespace=nowarn "$patch"
