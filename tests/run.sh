#!/usr/bin/env bash
# Runs test programs and adds up what cmocka says. Usage: run.sh PROGRAM...
# JOBS of them run at a time (default: one a core, 4 at most). A comment's line of its own, in the script or in tests/PROGRAM.c, changes
# that: `ALONE` runs after the others with nothing beside it, since it holds the product to short times; `WAITS` mostly waits
# and runs beside the others, one at a time. Each gets LIMIT seconds (default 300), or what its `LIMIT=` says, likewise;
# its whole output is in PROGRAM.log.
# Ends in "N passed, N failed, N skipped"; exit 1 where anything failed.
set -u
limit=${LIMIT:-300}
export MKERNEL_TUNING=none # what somebody tuned here is no part of what is tested
jobs=${JOBS:-$(nproc)}
[ "$jobs" -le 4 ] || [ -n "${JOBS:-}" ] || jobs=4
passed=0 failed=0 skipped=0 cpu_ms=0
failures=() failed_programs=() skips=()
begin=${EPOCHREALTIME/[.,]/}
declare -A running=() # program by process
trap 'kill "${!running[@]}" 2>/dev/null; wait; exit 130' INT TERM

says() { # PROGRAM KEY: what a comment of its source says
    local source=$1
    [[ $1 == *.sh ]] || source=${0%/*}/${1##*/}.c
    [ ! -r "$source" ] || sed -n "s/^# $2\$/yes/p; s,^/\* $2 \*/\$,yes,p; s/^# $2=//p; s,^/\* $2=\(.*\) \*/\$,\1,p" "$source"
}

run() { # PROGRAM: leaves its status, limit and ms in PROGRAM.result, and in the third line its CPU time
    local own begin=${EPOCHREALTIME/[.,]/} pid rc
    own=$(says "$1" LIMIT)
    own=${own:-$limit}
    timeout -k 20 "$own" "$1" >"$1.log" 2>&1 </dev/null &
    pid=$!
    trap 'kill "$pid"' TERM
    { wait "$pid"; } 2>/dev/null
    rc=$?
    trap - TERM
    wait "$pid" 2>/dev/null # where a signal has ended the first
    if [ "$rc" -lt 0 ]; then # the shell has lost the status of a child that had ended at once (seen once in some 10,000)
        timeout -k 20 "$own" "$1" >"$1.log" 2>&1 </dev/null
        rc=$?
    fi
    { echo "$rc $own $(((${EPOCHREALTIME/[.,]/} - begin) / 1000))"; times; } >"$1.result"
}

# Of a log what is about failures: not the tests that passed or were skipped.
about_failures() {
    awk '/^\[ RUN      \]/ {block = $0; inside = 1; next}
        inside && /^\[       OK \]|^\[  SKIPPED \]/ {inside = 0; next}
        inside && /^\[  FAILED  \]/ {print block; inside = 0}
        inside {block = block "\n" $0; next}
        {print}
        END {if (inside) print block}' "$1" | tail -n 400 | sed 's/^/    /'
}

finished() { # PROGRAM
    local name=${1##*/} log=$1.log rc own ms cpu p s f x
    read -r rc own ms <"$1.result"
    cpu=$(tr ',' '.' <"$1.result" | awk -F '[ms ]+' 'NR == 3 {printf "%d", ($1 * 60 + $2 + $3 * 60 + $4) * 1000}')
    p=$(grep -c '^\[       OK \]' "$log")
    # A skip's reason is the last line that the test printed before it.
    mapfile -t s < <(awk '/^\[ RUN      \]/ {why = ""; next} /^\[  SKIPPED \] [^0-9]/ && !listed[$4]++ {sub(/^skipped: /, "", why); print $4 ": " (why == "" ? "no reason given" : why); next} !/^\[/ {if ($0 != "") why = $0}' "$log")
    mapfile -t f < <(awk '/^\[  FAILED  \] [a-zA-Z_]/ {print $4}' "$log" | sort -u)
    if [ "$rc" != 0 ] && [ "${#f[@]}" = 0 ]; then # died before cmocka could say so
        f=("exit status $rc$([ "$rc" = 124 ] && echo " (over $own s)")")
    fi
    passed=$((passed + p)) failed=$((failed + ${#f[@]})) skipped=$((skipped + ${#s[@]})) cpu_ms=$((cpu_ms + cpu))
    printf '%-28s %3d passed %3d failed %3d skipped %7d ms, %6d ms of CPU\n' "$name" "$p" "${#f[@]}" "${#s[@]}" "$ms" "$cpu"
    grep -h '^figure: ' "$log" | sed 's/^figure: /    /'
    for x in "${s[@]}"; do skips+=("$name $x"); done
    for x in "${f[@]}"; do failures+=("$name $x"); done
    [ "${#f[@]}" = 0 ] || failed_programs+=("$1")
}

waits=() waiting= # programs that wait, and the process of the one that runs

wait_one() {
    local pid
    wait -n -p pid "${!running[@]}"
    finished "${running[$pid]}"
    unset "running[$pid]"
    [ "$pid" != "$waiting" ] || waiting=
}

start_waiting() {
    [ -z "$waiting" ] && [ "${#waits[@]}" -gt 0 ] || return 0
    run "${waits[0]}" &
    waiting=$!
    running[$waiting]=${waits[0]}
    waits=("${waits[@]:1}")
}

start() { # PROGRAM JOBS
    run "$1" &
    running[$!]=$1
    start_waiting
    while [ $((${#running[@]} - (${waiting:+1} + 0))) -ge "$2" ]; do
        wait_one
        start_waiting
    done
}

alone=() others=()
for program in "$@"; do
    if [ -n "$(says "$program" ALONE)" ]; then
        alone+=("$program")
    elif [ -n "$(says "$program" WAITS)" ]; then
        waits+=("$program")
    else
        others+=("$program")
    fi
done
start_waiting
for program in "${others[@]}"; do start "$program" "$jobs"; done
while [ "${#running[@]}" -gt 0 ]; do
    wait_one
    start_waiting
done
for program in "${alone[@]}"; do start "$program" 1; done

# Last, where whoever sees only the end of a log finds it.
for program in "${failed_programs[@]}"; do
    echo "what failed in ${program##*/}:"
    about_failures "$program.log"
done
for x in "${skips[@]}"; do echo "skipped: $x"; done
for x in "${failures[@]}"; do echo "FAILED: $x"; done
echo "$passed passed, $failed failed, $skipped skipped in $(((${EPOCHREALTIME/[.,]/} - begin) / 1000000)) s, $((cpu_ms / 1000)) s of CPU"
[ "$failed" = 0 ]
