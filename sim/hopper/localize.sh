#!/bin/sh
# Usage: [WITH=EMULATED] localize.sh CXX OUT OBJECT...
# Links objects of kernels that were compiled for the emulated machine into one, OUT: the calls that -fsanitize=thread inserted
# go to the machine (symbols), C functions are called emulated_<name>, and nothing else is seen from outside. WITH: such an
# object, whose C functions these call.
set -eu
cxx=$1 out=$2
shift 2
here=$(dirname "$0")
$cxx -r -nostdlib -Wl,--force-group-allocation -o "$out.all" "$@"
nm -g --defined-only "$out.all" | awk '$3 !~ /^_Z/ && $3 ~ /^[a-z]/ { print $3 " emulated_" $3 }' | sort -u >"$out.names"
sed 's/.* //' "$out.names" >"$out.kept"
[ -z "${WITH-}" ] || nm -g --defined-only "$WITH" | sed -n 's/.* emulated_\(.*\)/\1 emulated_\1/p' >>"$out.names"
objcopy --redefine-syms="$here/symbols" --redefine-syms="$out.names" "$out.all" "$out.renamed"
objcopy --keep-global-symbols="$out.kept" "$out.renamed" "$out"
rm -f "$out.all" "$out.renamed" "$out.names" "$out.kept"
