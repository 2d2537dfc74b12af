#!/usr/bin/env bash
# Everything on a host with Hopper GPUs, in one call: results, failures, and with `bench` the tables of docs/FIGURES.md.
# Usage: [ONLY=REGEX] gpu_host.sh BUILD [bench]; ONLY: the checks whose names it matches. Speaks cmocka's lines, so that tests/run.sh counts it. Every command ends by itself.
set -u
build=$1
mkernel=$build/mkernel
gpus=$(nvidia-smi -L 2>/dev/null | grep -c H[12]00)
failed=0
# No NVLink multicast in the baselines either.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

check() { # NAME COMMAND...: right where it exits with 0; a function of this file bounds its own time
    local name=$1 bound=(timeout -k 5 120)
    [[ $name =~ ${ONLY:-.} ]] || return
    shift
    declare -F "$1" >/dev/null && bound=()
    echo "[ RUN      ] $name"
    if "${bound[@]}" "$@" >"$build/gpu.log" 2>&1; then
        echo "[       OK ] $name"
    else
        echo "exit status $?: $*"
        tail -n 5 "$build/gpu.log"
        echo "[  FAILED  ] $name"
        failed=$((failed + 1))
    fi
}

skip() { # NAME WHY
    printf '[ RUN      ] %s\n%s\n[  SKIPPED ] %s\n' "$1" "$2" "$1"
}

# Starts an endless run with a timeout of 3 s, sends SIGNAL to one of its ranks, and wants status 3 within SECONDS and a sentence about
# it: a killed rank's peers end within the timeout and 2 s; a stopped one is killed so long after the first of them.
disturbed() { # SIGNAL SECONDS
    local bound launcher begin end status waited
    timeout -k 5 60 "$mkernel" run ag_gemm --exec cuda --gpus "$gpus" --shape $((gpus * 1024)),1024,4096 --iters 1000000 --timeout 3 >"$build/gpu.out" 2>&1 &
    bound=$!
    for waited in $(seq 100); do # until the ranks compute, as far as that can be seen here; 8 s where it cannot
        sleep 0.2
        launcher=$(pgrep -P "$bound" | head -n 1)
        [ "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)" -ge "$gpus" ] && break
        [ -n "$launcher" ] && [ "$(pgrep -P "$launcher" | wc -l)" -ge "$gpus" ] && [ "$waited" -ge 40 ] && break
    done
    sleep 1
    begin=$(date +%s%N)
    kill "-$1" "$(pgrep -P "$launcher" | sed -n 2p)"
    wait "$bound"
    status=$?
    end=$(date +%s%N)
    pkill -CONT -f "$mkernel run ag_gemm" 2>/dev/null
    echo "status $status after $(((end - begin) / 1000000)) ms: $(tail -n 1 "$build/gpu.out")"
    [ "$status" = 3 ] && [ $((end - begin)) -lt ${2}000000000 ] && grep -q "rank 1" "$build/gpu.out"
}

if [ "$gpus" = 0 ]; then
    skip gpu_host "no Hopper GPU on this machine"
    exit 0
fi
run="$mkernel run ag_gemm --exec cuda --check --timeout 5"
check commands_reach_the_proxy "$build/tests/gpu_ring" check
check engine_any_shape "$build/tests/gpu_gemm" check
check one_gpu $run --gpus 1 --shape 390,200,328 --iters 5
check all_gpus_odd_shape $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10
check all_gpus_nk $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 8 --b-layout nk
check dedicated_ctas $run --gpus "$gpus" --shape $((gpus * 512)),512,1024 --iters 8 --roles compute=116,intra_comm=16
check two_hundred_launches $run --gpus "$gpus" --shape $((gpus * 256)),512,1024 --iters 200 --burst 50
check ranks_share_a_gpu $run --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200,328 --iters 4
if [ "$gpus" -ge 2 ]; then
    check two_nodes_emulated $run --nodes 2 --gpus $((gpus / 2)) --nic soft --shape $((gpus * 390)),200,328 --iters 20 --burst 5
    check staged_through_the_host env SOFTNIC=gpu=refuse $run --nodes 2 --gpus $((gpus / 2)) --nic soft --shape $((gpus * 390)),200,328 --iters 20
    check over_srd env SOFTNIC=reorder=300us $run --nodes 2 --gpus $((gpus / 2)) --nic soft --fabric efa --shape $((gpus * 390)),200,328 --iters 20
    check staged_over_srd env SOFTNIC=gpu=refuse,reorder=300us $run --nodes 2 --gpus $((gpus / 2)) --nic soft --fabric efa --shape $((gpus * 390)),200,328 --iters 20
    check a_rank_killed disturbed KILL 6
    check usable_after_a_kill $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 2
    check a_rank_stopped disturbed STOP 11
else
    skip two_nodes_emulated "one GPU"
    check two_nodes_on_one_gpu $run --nodes 2 --gpus 1 --nic soft --shape 780,200,328 --iters 8
    check staged_through_the_host env SOFTNIC=gpu=refuse $run --nodes 2 --gpus 1 --nic soft --shape 780,200,328 --iters 8
    check over_srd env SOFTNIC=reorder=300us $run --nodes 2 --gpus 1 --nic soft --fabric efa --shape 780,200,328 --iters 8
    check staged_over_srd env SOFTNIC=gpu=refuse,reorder=300us $run --nodes 2 --gpus 1 --nic soft --fabric efa --shape 780,200,328 --iters 8
fi
# Sums over ranks: the same.
for op in gemm_rs gemm_ar; do
    run="$mkernel run $op --exec cuda --check --timeout 5"
    own=compute=120,inter_reduce=8
    [ $op = gemm_ar ] && [ "$gpus" -ge 2 ] && own=compute=112,intra_comm=8,inter_reduce=8
    check ${op}_one_gpu $run --gpus 1 --shape 390,200,328 --iters 5
    check ${op}_odd_shape $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10
    check ${op}_odd_shape_deterministic $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10 --deterministic
    check ${op}_nk $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 8 --b-layout nk
    check ${op}_tiles_256x128 $run --gpus "$gpus" --shape $((gpus * 512)),520,1024 --iters 8 --tile 256,128
    check ${op}_tiles_128x64 $run --gpus "$gpus" --shape $((gpus * 130)),520,72 --iters 8 --tile 128,64
    check ${op}_dedicated_ctas $run --gpus "$gpus" --shape $((gpus * 512)),512,1024 --iters 8 --roles $own
    check ${op}_two_hundred_launches $run --gpus "$gpus" --shape $((gpus * 256)),512,1024 --iters 200 --burst 50
    check ${op}_ranks_share_a_gpu "$mkernel" run $op --exec cuda --check --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200,328 --iters 4 --timeout 60
    check ${op}_two_nodes $run --nodes 2 --gpus $(((gpus + 1) / 2)) --nic soft --shape $((gpus * 780)),200,328 --iters 8
    check ${op}_traced "$mkernel" run $op --exec cuda --gpus "$gpus" --shape $((gpus * 1024)),1024,1024 --iters 3 --trace "$build/gpu.db"
    check ${op}_summary "$mkernel" trace summary "$build/gpu.db"
done
check traced "$mkernel" run ag_gemm --exec cuda --gpus "$gpus" --shape $((gpus * 1024)),1024,4096 --iters 3 --trace "$build/gpu.db"
check summary "$mkernel" trace summary "$build/gpu.db"
if command -v compute-sanitizer >/dev/null; then
    for op in ag_gemm gemm_rs gemm_ar; do
        small="$mkernel run $op --exec cuda --gpus 1 --shape 390,200,328 --iters 1 --timeout 60"
        check ${op}_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small
        check ${op}_racecheck compute-sanitizer --error-exitcode 9 --target-processes all --tool racecheck $small
    done
else
    skip memcheck "no compute-sanitizer on the PATH"
fi

if [ "${2:-}" = bench ]; then
    square=4096,512,4096:8192,1024,8192:16384,2048,16384:32768,4096,32768
    wide=2048,4096,8192:4096,3584,8192:8192,3584,8192:8192,8192,8192:16384,3584,8192:32768,4096,8192
    "$build/tests/gpu_gemm" bench 4 30
    timeout 60 "$build/tests/gpu_ring" bench
    timeout 400 "$mkernel" bench ag_gemm --exec cuda --gpus "$gpus" --shapes $square:$wide --iters 40 --timeout 10 --vs torch --csv "$build/ag_gemm.csv"
    timeout 120 "$mkernel" bench ag_gemm --exec cuda --gpus "$gpus" --shapes 8192,1024,8192:16384,2048,16384 --iters 40 --timeout 10 --traced
    sums=8192,8192,1024:16384,16384,2048:32768,32768,4096:8192,8192,3584:16384,8192,3584:2048,8192,4096
    timeout 400 "$mkernel" bench gemm_rs --exec cuda --gpus "$gpus" --shapes $sums --iters 40 --timeout 10 --vs torch --csv "$build/gemm_rs.csv"
    timeout 200 "$mkernel" bench gemm_rs --exec cuda --gpus "$gpus" --shapes 16384,16384,2048 --deterministic --iters 40 --timeout 10
    timeout 400 "$mkernel" bench gemm_ar --exec cuda --gpus "$gpus" --shapes $sums --iters 40 --timeout 10 --csv "$build/gemm_ar.csv"
    for op in ag_gemm gemm_rs; do # the whole way of a tuned plan: found, kept, taken
        shape=8192,8192,1024
        [ $op = ag_gemm ] && shape=8192,1024,8192
        timeout 120 "$mkernel" tune $op --exec cuda --gpus "$gpus" --shape $shape --iters 40 --rounds 1 --space tile:pace:roles --tuning "$build/gpu.plans" &&
            timeout 60 "$mkernel" bench $op --exec cuda --gpus "$gpus" --shapes $shape --iters 40 --timeout 10 --tuning "$build/gpu.plans"
    done
    [ "$gpus" -ge 4 ] && timeout 120 "$mkernel" bench gemm_rs --exec cuda --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 16384,16384,2048 --iters 40 --timeout 10
    [ "$gpus" -ge 4 ] && timeout 120 "$mkernel" bench gemm_ar --exec cuda --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 16384,16384,2048 --iters 40 --timeout 10
    [ "$gpus" -ge 4 ] && timeout 120 "$mkernel" bench ag_gemm --exec cuda --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 8192,1024,8192:16384,2048,16384 --iters 40 --timeout 10
fi
[ "$failed" = 0 ]
