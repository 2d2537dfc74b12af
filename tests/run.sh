#!/usr/bin/env bash
# Runs test programs one after the other and adds up what cmocka says. Usage: run.sh PROGRAM...
# Each program gets LIMIT seconds (default 300). Ends in "N passed, N failed, N skipped"; exit 1 where anything failed.
set -u
limit=${LIMIT:-300}
passed=0 failed=0 skipped=0
failures=() skips=()
for program in "$@"; do
    name=$(basename "$program")
    log=$program.log
    begin=$(date +%s%N)
    own=$limit # a script may say that it takes longer
    [[ $program != *.sh ]] || own=$(sed -n 's/^# LIMIT=//p' "$program" | grep . || echo "$limit")
    timeout -k 10 "$own" "$program" >"$log" 2>&1 </dev/null
    rc=$?
    ms=$((($(date +%s%N) - begin) / 1000000))
    p=$(grep -c '^\[       OK \]' "$log")
    # A skip's reason is the last line that the test printed before it.
    mapfile -t s < <(awk '/^\[ RUN      \]/ {why = ""; next} /^\[  SKIPPED \] [^0-9]/ {print $4 ": " (why == "" ? "no reason given" : why); next} !/^\[/ {if ($0 != "") why = $0}' "$log")
    mapfile -t f < <(awk '/^\[  FAILED  \] [a-zA-Z_]/ {print $4}' "$log" | sort -u)
    bad=${#f[@]}
    if [ "$rc" != 0 ] && [ "$bad" = 0 ]; then # died before cmocka could say so
        bad=1
        f=("exit status $rc$([ "$rc" = 124 ] && echo " (over $own s)")")
    fi
    passed=$((passed + p)) failed=$((failed + bad)) skipped=$((skipped + ${#s[@]}))
    printf '%-28s %3d passed %3d failed %3d skipped %7d ms\n' "$name" "$p" "$bad" "${#s[@]}" "$ms"
    for x in "${s[@]}"; do skips+=("$name $x"); done
    if [ "$bad" != 0 ]; then
        for x in "${f[@]}"; do failures+=("$name $x"); done
        sed 's/^/    /' "$log" | tail -n 60
    fi
done
for x in "${skips[@]}"; do echo "skipped: $x"; done
for x in "${failures[@]}"; do echo "FAILED: $x"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
