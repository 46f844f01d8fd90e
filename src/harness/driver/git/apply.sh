# apply.sh: top patch. Applies a patch that the harness made. It may not write into .git: git refuses that, `patch` would not.
cd "$2"
repository() { git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null "$@"; }
[ -s "$3" ] || exit 0
repository apply --whitespace=nowarn "$3" || repository apply --whitespace=nowarn --3way "$3"
