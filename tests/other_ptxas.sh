#!/usr/bin/env bash
# In nvcc's place (`make other-ptxas`): does what nvcc (REAL_NVCC) does for an object, but gives the PTX, marked as of the newest version that it knows, to
# another ptxas, PTXAS. The object stays empty.
set -eu
case " $* " in *" -c "*) ;; *) exec "$REAL_NVCC" "$@" ;; esac
TMPDIR=$(mktemp -d) && export TMPDIR && trap 'rm -rf "$TMPDIR"' EXIT
"$REAL_NVCC" --dryrun "$@" 2>&1 | sed -n 's/^#\$ //p' >"$TMPDIR/steps"
eval "$(grep -E '^(CICC_PATH|NVVMIR_LIBRARY_DIR|LD_LIBRARY_PATH|PATH)=' "$TMPDIR/steps")"
export LD_LIBRARY_PATH PATH
printf '.version 99.0\n' >"$TMPDIR/asks.ptx"
newest=$("$PTXAS" "$TMPDIR/asks.ptx" -o /dev/null 2>&1 | sed -n "s/.*current version is '\([0-9.]*\)'.*/\1/p")
[ -n "$newest" ] || { echo "$PTXAS does not say which PTX it knows" >&2 && exit 2; }
while read -r step; do
    case $step in
    ptxas*)
        sed -i "s/^\.version .*/.version $newest/" "$(sed 's/.* "\([^"]*\.ptx\)" .*/\1/' <<<"$step")"
        eval "\"\$PTXAS\" ${step#ptxas}"
        ;;
    gcc* | cudafe* | '"$CICC_PATH/cicc"'*) eval "$step" ;;
    fatbinary*) break ;; # what follows makes the object
    esac
done <"$TMPDIR/steps"
while [ "$1" != -o ]; do shift; done
: >"$2"
