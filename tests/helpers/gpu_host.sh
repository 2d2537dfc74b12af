# The functions of tests/gpu_host.sh, whose variables they use: a check, its judgement, and commands that are more than one line. Sourced.

skip() { # NAME WHY
    [[ $1 =~ ${ONLY:-.} && $1 =~ $here ]] || return 0
    printf '[ RUN      ] %s\n%s\n[  SKIPPED ] %s\n' "$1" "$2" "$1"
    skipped=$((skipped + 1))
}

# Of ENGINE: what is an operator's launch that names no engine, and no racecheck, whose places to leave out are wgmma's.
takes_engine() { # COMMAND...
    case " $* " in
        *" --engine "* | " raced "* | *" bench fabric "* | *" bench ring "* | *" bench trace "* | *" bench collective "*) return 1 ;;
        *" $mkernel run "* | *" $mkernel bench "* | " disturbed "* | " overflows "* | " explained "* | " traced "*) return 0 ;;
    esac
    return 1
}

# One line of result for what runs at most LIMIT seconds; a function of this file bounds its own time, which LIMIT says.
judge() { # NAME LIMIT LOG COMMAND...; LOG '': the output is what is wanted
    local name=$1 limit=$2 log=$3 left=$((${BUDGET:-1000000} - SECONDS)) bound=() cut=0 status
    shift 3
    if [ -n "${ENGINE:-}" ]; then
        takes_engine "$@" || return 0
        name=${name}_on_engine_$ENGINE
        set -- "$@" --engine "$ENGINE"
    fi
    [[ $name =~ ${ONLY:-.} && $name =~ $here ]] || return 0
    if [ "$left" -lt "$limit" ]; then
        cut=1 limit=$((left - 5))
        if [ "$limit" -lt 5 ] || declare -F "$1" >/dev/null; then
            skip "$name" "no time left of $BUDGET s"
            return 0
        fi
    fi
    declare -F "$1" >/dev/null || bound=(timeout -k 5 "$limit")
    echo "[ RUN      ] $name"
    if [ -n "$log" ]; then "${bound[@]}" "$@" >"$log" 2>&1; else "${bound[@]}" "$@" 2>&1; fi
    status=$?
    if [ "$status" = 0 ]; then
        [ -z "$log" ] || grep -h '^figure: ' "$log"
        echo "[       OK ] $name"
        passed=$((passed + 1))
    elif [ "$status" = 77 ] || { [ -n "${ENGINE:-}" ] && [ "$status" = 2 ]; }; then # what this host, or that engine, has not
        [ -z "$log" ] || tail -n 1 "$log"
        echo "[  SKIPPED ] $name"
        skipped=$((skipped + 1))
    elif [ "$cut" = 1 ] && { [ "$status" = 124 ] || [ "$status" = 137 ]; }; then
        printf 'cut off by the budget of %s s\n[  SKIPPED ] %s\n' "$BUDGET" "$name"
        skipped=$((skipped + 1))
    else
        echo "exit status $status: $*"
        # of compute-sanitizer what lies before its last lines, too: each hazard with its two places
        [ -z "$log" ] || { grep -m 24 -E '^=+ +(Error|Warning|Invalid|Race|Write access|Read access|.* at )' "$log"; tail -n 5 "$log"; }
        echo "[  FAILED  ] $name"
        failed=$((failed + 1))
    fi
}

check() { # NAME COMMAND...: right where it exits with 0
    judge "$1" 120 "$build/gpu.log" "${@:2}"
}

table() { # NAME LIMIT COMMAND...
    judge "$1" "$2" '' "${@:3}"
}

modelled() { # ARGUMENTS...: docs/examples/model.py on these GPUs, by MK_TORCH or python3, which needs PyTorch and transformers
    local root python=${MK_TORCH:-python3}
    root=$(cd "$tests/.." && pwd)
    if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
        echo "$python has no PyTorch or no transformers: MK_TORCH=PYTHON names one that has"
        return 77
    fi
    PYTHONPATH=$root/experiments/python MKERNEL_LIBRARY=$(cd "$build" && pwd)/libmkernel.so timeout -k 5 230 \
        "$python" -m torch.distributed.run --nproc-per-node "$gpus" "$root/docs/examples/model.py" "$@"
}

children() { # PID: of those it has started, one a line, the first foremost
    local all
    all=$(cat "/proc/$1/task/$1/children" 2>/dev/null) || all=$(pgrep -P "$1")
    printf '%s\n' $all
}

# Starts an endless run with a timeout of 3 s, sends SIGNAL to one of its ranks, and wants status 3 within SECONDS and a sentence about
# it: a killed rank's peers end within the timeout and 2 s; a stopped one is killed so long after the first of them.
disturbed() { # SIGNAL SECONDS OP PROBLEM...
    local bound launcher='' begin end status began=$SECONDS ranks=0 victim
    timeout -k 5 60 "$mkernel" run "${@:3}" --exec cuda --gpus "$gpus" --iters 1000000 --timeout 3 >"$build/gpu.out" 2>&1 &
    bound=$!
    while [ $((SECONDS - began)) -lt 20 ]; do # until the ranks compute, as far as that can be seen here; 8 s where it cannot
        sleep 0.2
        [ -n "$launcher" ] || launcher=$(children "$bound" | head -n 1)
        [ -n "$launcher" ] || continue
        ranks=$(children "$launcher" | grep -c .)
        [ "$ranks" -ge "$gpus" ] || continue
        [ $((SECONDS - began)) -lt 8 ] || break
        [ "$(timeout 5 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)" -lt "$gpus" ] || break
    done
    sleep 2
    victim=$([ -n "$launcher" ] && children "$launcher" | sed -n 2p)
    if [ "$ranks" -lt "$gpus" ] || [ -z "$victim" ]; then
        echo "after $((SECONDS - began)) s $ranks of $gpus ranks run: $(tail -n 1 "$build/gpu.out")"
        kill "$bound" 2>/dev/null
        wait "$bound"
        return 1
    fi
    begin=$(date +%s%N)
    kill "-$1" "$victim"
    wait "$bound"
    status=$?
    end=$(date +%s%N)
    kill -CONT "$victim" 2>/dev/null
    echo "figure: a rank with SIG$1: status $status after $(((end - begin) / 1000000)) ms: $(tail -n 1 "$build/gpu.out")"
    [ "$status" = 3 ] && [ $((end - begin)) -lt "${2}000000000" ] && grep -q "rank 1" "$build/gpu.out"
}

overflows() { # OP PROBLEM...: more rows than there is room for end a run with status 3, and the sentence names rank and count
    timeout -k 5 60 "$mkernel" run "$1" --exec cuda --timeout 5 --iters 2 "${@:2}" >"$build/gpu.out" 2>&1
    [ $? = 3 ] && grep -Eq "rank [0-9]+ has room for [0-9]+ rows of its experts, and [0-9]+ came in epoch 1" "$build/gpu.out"
}

explained() { # OP BENCH...: `bench --why` splits a launch that took about as long as the timed ones, into parts that add up to it
    timeout -k 5 110 "$mkernel" bench "$1" --exec cuda --gpus "$gpus" --iters 40 "${@:2}" --why --json "$build/gpu.json" || return 1
    python3 - "$build/gpu.json" <<'EOF'
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    why, fused = row["why"], row["ms"] * 1e6
    whole = why.pop("whole_ns")
    parts = sum(ns for name, ns in why.items() if name.endswith("_ns") and name != "early_ns")
    print("figure: traced %.1f us, timed %.1f" % (whole / 1e3, fused / 1e3))
    assert abs(parts - whole) < 1e-6 * whole and 0.7 * fused < whole < 1.3 * fused + 10e3, (parts, whole, fused)
EOF
}

traced() { # OP PROBLEM...: a run's trace is there, and its summary says how well the clocks are known
    rm -f "$build/gpu.db"
    timeout -k 5 80 "$mkernel" run "$@" --exec cuda --gpus "$gpus" --iters 3 --trace "$build/gpu.db" &&
        timeout -k 5 30 "$mkernel" trace summary "$build/gpu.db" >"$build/gpu.out" &&
        sed -n 's/^worst clock/figure: &/p' "$build/gpu.out" && cat "$build/gpu.out"
}

# racecheck counts the barriers that each thread has passed. Where some warps of a block have met at a named barrier of their own and
# others have not, it no longer sees that a __syncthreads orders them: a kernel in which one warpgroup alone does two `bar.sync 1, 128`
# before shared memory is written, __syncthreads and read has 4,085 hazards, and none where each warpgroup does as many at its own.
# The engine's consumers do so. What comes behind them in shared memory is ordered in the emulation, by vector clocks, and is left out here.
# Nor does it see what lanes did before a __syncwarp behind which one of them arrives at an mbarrier: a warp that reads what a bulk copy brought,
# meets and lets lane 0 arrive, before the producer's next copy, has 14,881 hazards, all at lanes but that one; none where each lane arrives.
# FP8's scales are read so.
raced() { # BEHIND COMMAND...: no hazard but at places that match BEHIND
    local behind=$1 other
    shift
    timeout -k 5 110 compute-sanitizer --target-processes all --tool racecheck --racecheck-report all --print-limit 100000 "$@" >"$build/race.txt" 2>&1 ||
        { tail -n 5 "$build/race.txt"; return 1; }
    other=$(grep -E '(Write|Read) (Thread|access)' "$build/race.txt" | grep -vE "$behind" | sed 's/([0-9,]*) //' | sort | uniq -c)
    [ -z "$other" ] || { echo "$other"; return 1; }
    echo "figure: racecheck: no hazard, but for $(grep -cE '^=+ Error' "$build/race.txt") at $behind"
}

under_mps() { # COMMAND...: on the first GPU alone, which an MPS daemon of its own serves
    local folder status
    folder=$(mktemp -d)
    (
        export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder CUDA_VISIBLE_DEVICES=0
        timeout -k 5 20 nvidia-cuda-mps-control -d && timeout -k 5 60 "$@"
        status=$?
        echo quit | timeout -k 5 20 nvidia-cuda-mps-control
        exit $status
    )
    status=$?
    rm -rf "$folder"
    return $status
}

small_problem() { # OP RANKS
    case $1 in
        ring_attention) echo "--attention 1,$(($2 * 520)),4,2,128" ;;
        moe_dispatch | moe_combine) echo "--moe 130,200,$(($2 * 4)),3" ;;
        moe_*) echo "--moe 130,200,328,$(($2 * 4)),3" ;;
        all_* | reduce_scatter) echo "--shape $(($2 * $2 * 65)),200" ;;
        *) echo "--shape $(($2 * 260)),200,328" ;;
    esac
}
