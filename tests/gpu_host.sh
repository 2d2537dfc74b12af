#!/usr/bin/env bash
# Everything on a host with Hopper GPUs, in one call: results, failures, and with `bench` the tables of docs/FIGURES.md. On other GPUs
# of compute capability 8.0 and up what engine mma and the operators without an engine have, and no tables but theirs.
# Usage: [ONLY=REGEX] [BUDGET=SECONDS] [GPUS=N] [ENGINE=mma] gpu_host.sh BUILD [bench]
#   ONLY: the checks and tables (bench_...) whose names it matches. BUDGET: ends in time for a host that is lent for so long: what
#   has not begun or ended by then counts as skipped. GPUS: the first N of those that are there. ENGINE: all launches that name no engine
#   once more, by that one, and nothing else; what it has not (a tile, an option) counts as skipped.
# Speaks cmocka's lines, so that tests/run.sh counts it, and ends in "N passed, N failed, N skipped". Every command ends by itself.
set -u
build=$1 tests=$(dirname "$0")
mkernel=$build/mkernel
gpus=$(nvidia-smi -L 2>/dev/null | grep -c 'H[12]00')
here=. # names of what these GPUs can run
if [ "$gpus" = 0 ]; then
    gpus=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -cE '^(8|9|[1-9][0-9])\.')
    here='_mma|second_engine|^same_bits_as_the_emulation$|^mps_|^slices_|^(all_gather|all_to_all|reduce_scatter)_|^((gemm_rs|gemm_ar|moe|layer)_)?ranks_share_a_gpu$|^(ag_gemm|gemm_rs|gemm_ar|moe|layer)_traced$|^a_rank_|^usable_'
    "$mkernel" info 2>/dev/null | grep -q '^P2P .* node of its own' && GPUS=1 # others would not be of its node
fi
if [ -n "${GPUS:-}" ] && [ "$GPUS" -lt "$gpus" ]; then
    gpus=$GPUS
    CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((gpus - 1)))
    export CUDA_VISIBLE_DEVICES
fi
passed=0 failed=0 skipped=0
# No NVLink multicast in the baselines either.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

. "$tests/helpers/gpu_host.sh"

if [ "$gpus" = 0 ]; then
    ONLY=. here=. skip gpu_host "no GPU of compute capability 8.0 or up on this machine"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
nodes="--nodes 2 --gpus $((gpus / 2)) --nic soft"
[ "$gpus" -ge 2 ] || nodes="--nodes 2 --gpus 1 --nic soft" # both on the one that there is
world=$((gpus < 2 ? 2 : gpus / 2 * 2))
apart="--nodes $world --gpus 1 --nic soft"
# Blocks of their own that push: an SM in eight or a few more, since as many as divide those that compute would be beside these.
sms=$("$mkernel" info 2>/dev/null | sed -n 's/^GPU 0 .* \([0-9]*\) SMs.*/\1/p')
sms=${sms:-132} pushing=$((sms / 8))
while [ $((sms % pushing)) = 0 ]; do pushing=$((pushing + 1)); done
blocks_push="compute=$((sms - pushing)),intra_comm=$pushing"
run="$mkernel run ag_gemm --exec cuda --check --timeout 5"
check same_bits_as_the_emulation "$build/tests/gpu_conform" check tests/golden/hopper_conformance.txt
check same_bits "$build/tests/gpu_same_bits"
check commands_reach_the_proxy "$build/tests/gpu_ring" check
check memory_between_processes "$build/tests/gpu_fabric" check
check engine_any_shape "$build/tests/gpu_gemm" check
check epilogue_bias_silu $run --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 8 --epilogue bias+silu
check epilogue_gelu_few_rows $run --gpus "$gpus" --shape $((gpus * 8)),520,2064 --iters 8 --epilogue bias+gelu_tanh
check epilogue_gated $run --gpus "$gpus" --shape $((gpus * 1028)),528,2064 --iters 8 --epilogue bias+silu+gated
check epilogue_gated_few_rows $run --gpus "$gpus" --shape $((gpus * 8)),4112,2064 --iters 8 --epilogue gelu_tanh+gated --b-layout nk
check epilogue_gated_fp16 $run --gpus "$gpus" --shape $((gpus * 520)),528,2064 --iters 8 --epilogue silu+gated --dtype fp16
check epilogue_gated_fp8 $run --gpus "$gpus" --shape $((gpus * 1028)),1280,2064 --iters 8 --epilogue bias+silu+gated --dtype fp8 --b-layout nk
check epilogue_gated_fp8_few_rows $run --gpus "$gpus" --shape $((gpus * 8)),4352,2064 --iters 8 --epilogue gelu_tanh+gated --dtype fp8 --b-layout nk
for layout in kn nk; do
    check epilogue_gated_mma_$layout $run --gpus "$gpus" --shape $((gpus * 1028)),528,2064 --iters 8 --epilogue bias+silu+gated --engine mma --b-layout $layout
    check epilogue_gated_few_rows_mma_$layout $run --gpus "$gpus" --shape $((gpus * 8)),4112,2064 --iters 8 --epilogue gelu_tanh+gated --engine mma --b-layout $layout
    check epilogue_gated_fp16_mma_$layout $run --gpus "$gpus" --shape $((gpus * 520)),528,2064 --iters 8 --epilogue bias+silu+gated --engine mma --dtype fp16 --b-layout $layout
done
check epilogue_gated_fp8_mma $run --gpus "$gpus" --shape $((gpus * 1028)),576,2064 --iters 8 --epilogue bias+silu+gated --engine mma --dtype fp8 --b-layout nk
check epilogue_gated_fp8_mma_64x64 $run --gpus "$gpus" --shape $((gpus * 260)),448,1424 --iters 8 --epilogue gelu_tanh+gated --engine mma --dtype fp8 --b-layout nk --tile 64,64
check epilogue_fp8 $run --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 8 --epilogue bias+silu --dtype fp8 --b-layout nk
check epilogue_mma $run --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 8 --epilogue bias+gelu_tanh --engine mma
for words in residual residual+rmsnorm residual+rmsnorm+quantize; do
    check "${words}_decoding" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 1,8192,1032 --iters 50 --burst 10 --epilogue $words
    check "${words}_few_rows_deterministic" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 33,8192,1032 --iters 8 --epilogue $words --deterministic --b-layout nk
    check "${words}_few_rows" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 17,4096,1032 --iters 8 --epilogue $words
    check "${words}_one_shot" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 300,4112,520 --iters 8 --epilogue $words --shots 1
    check "${words}_shared" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 700,4112,520 --iters 8 --epilogue $words --shots 3
    check "${words}_two_shots" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 2051,1296,520 --iters 8 --epilogue $words --shots 2 --deterministic
    check "${words}_scattered" $mkernel run gemm_rs --exec cuda --check --timeout 5 --gpus "$gpus" --shape $((gpus * 1026)),1296,520 --iters 8 --epilogue $words
    check "${words}_scattered_one_shot" $mkernel run gemm_rs --exec cuda --check --timeout 5 --gpus "$gpus" --shape $((gpus * 150)),4112,520 --iters 8 --epilogue $words --shots 1
    check "${words}_scattered_mma" $mkernel run gemm_rs --exec cuda --check --timeout 5 --gpus "$gpus" --shape $((gpus * 1026)),1296,520 --iters 8 --epilogue $words --engine mma
    check "${words}_mma" $mkernel run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape 2051,1296,520 --iters 8 --epilogue $words --engine mma
    fp8="--exec cuda --check --timeout 5 --iters 8 --dtype fp8 --b-layout nk --epilogue $words"
    check "${words}_fp8_few_rows" $mkernel run gemm_ar $fp8 --gpus "$gpus" --shape 20,4096,1040 --burst 4
    check "${words}_fp8_one_shot" $mkernel run gemm_ar $fp8 --gpus "$gpus" --shape 300,4112,528 --shots 1 --deterministic
    check "${words}_fp8" $mkernel run gemm_ar $fp8 --gpus "$gpus" --shape 2052,1296,528 --shots 2
    check "${words}_fp8_scattered" $mkernel run gemm_rs $fp8 --gpus "$gpus" --shape $((gpus * 1028)),1296,528
    check "${words}_fp8_mma" $mkernel run gemm_ar $fp8 --gpus "$gpus" --shape 2052,1296,528 --engine mma
    check "${words}_fp8_two_nodes" $mkernel run gemm_ar $fp8 $nodes --shape 520,1296,528
done
check fp8_any_shape "$build/tests/gpu_fp8" check
check fp8_by_mma_sync "$build/tests/gpu_fp8_mma"
check quantize_same_bits "$build/tests/gpu_quantize" check
check quantize_at_memory_speed "$build/tests/gpu_quantize" speed
check grouped_any_groups "$build/tests/gpu_grouped" check
check attention_any_shape "$build/tests/gpu_attention" check
check second_engine_any_shape "$build/tests/gpu_mma" check
check second_engine_from_ptx env CUDA_FORCE_PTX_JIT=1 "$build/tests/gpu_mma" check
check second_engine_attention_any_shape "$build/tests/gpu_mma_attention" check
check second_engine_attention_from_ptx env CUDA_FORCE_PTX_JIT=1 "$build/tests/gpu_mma_attention" check
check moe_tables "$build/tests/gpu_route" check
if [ "$gpus" -ge 2 ]; then # of experts that several ranks hold: all operators, both engines, FP8, places that are dropped
    copies="--exec cuda --check --timeout 5 --gpus $gpus --skew 1 --iters 20 --burst 5 --replicas $((gpus * 3))"
    check moe_copies_dispatch "$mkernel" run moe_dispatch $copies --moe 333,520,$((gpus * 8)),4
    check moe_copies_combine "$mkernel" run moe_combine $copies --moe 333,520,$((gpus * 8)),4
    check moe_copies "$mkernel" run moe_dispatch_gemm $copies --moe 333,520,328,$((gpus * 8)),4
    check moe_copies_layer "$mkernel" run moe_ffn $copies --moe 333,520,328,$((gpus * 8)),4
    check moe_copies_layer_on_mma "$mkernel" run moe_ffn $copies --moe 333,520,328,$((gpus * 8)),4 --engine mma
    check moe_copies_layer_fp8 "$mkernel" run moe_ffn $copies --moe 333,528,336,$((gpus * 8)),4 --dtype fp8 --b-layout nk
    check moe_copies_dropped "$mkernel" run moe_ffn $copies --moe 333,520,328,$((gpus * 8)),4 --capacity $((gpus * 600)) --overflow drop
fi
check moe_copies_two_nodes "$mkernel" run moe_ffn --exec cuda --check --timeout 5 $nodes --moe 333,520,328,$((world * 5)),4 --iters 8 --skew 1 --replicas $((world * 2))
check moe_counts_in_a_graph "$build/tests/gpu_counts" check
check moe_halves_in_a_graph "$build/tests/gpu_halves" check
check a_launch_behind_a_late_one "$build/tests/gpu_late" check
if command -v nvidia-cuda-mps-control >/dev/null; then
    check mps_a_launch_behind_a_late_one under_mps "$build/tests/gpu_late" check shared
fi
check one_gpu $run --gpus 1 --shape 390,200,328 --iters 5
check all_gpus_odd_shape $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10
check fp8_one_gpu $run --gpus 1 --shape 392,200,336 --iters 5 --dtype fp8 --b-layout nk
check fp8_all_gpus $run --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 8 --dtype fp8 --b-layout nk
check fp8_ragged_rows $run --gpus "$gpus" --shape $((gpus * 1029)),520,2064 --iters 8 --dtype fp8 --b-layout nk
check fp8_ragged_few_rows $run --gpus "$gpus" --shape $((gpus * 3)),520,2064 --iters 8 --dtype fp8 --b-layout nk
check fp8_few_rows $run --gpus "$gpus" --shape $((gpus * 8)),520,2064 --iters 8 --dtype fp8 --b-layout nk
check fp8_on_mma $run --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 8 --dtype fp8 --b-layout nk --engine mma
check fp8_on_mma_64x64 $run --gpus "$gpus" --shape $((gpus * 260)),200,1424 --iters 8 --dtype fp8 --b-layout nk --engine mma --tile 64,64
columns="--exec cuda --check --timeout 5 --dtype fp8 --b-layout nk --b-scales columns --iters 8"
for op in ag_gemm gemm_rs gemm_ar; do # a scale for each column of B
    check ${op}_fp8_columns "$mkernel" run $op $columns --gpus "$gpus" --shape $((gpus * 1028)),1032,2064 --tile 256,256 --shots 2
    check ${op}_fp8_columns_few_rows "$mkernel" run $op $columns --gpus "$gpus" --shape $((gpus * 8)),520,2064
    check ${op}_fp8_columns_on_mma "$mkernel" run $op $columns --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --engine mma
    check ${op}_fp8_columns_two_nodes "$mkernel" run $op $columns $nodes --shape $((world * 260)),520,1040
done
for op in gemm_rs gemm_ar; do
    check ${op}_fp8_columns_deterministic "$mkernel" run $op $columns --gpus "$gpus" --shape $((gpus * 1028)),1032,2064 --tile 256,256 --shots 2 --deterministic
done
check ag_gemm_fp8_columns_gated "$mkernel" run ag_gemm $columns --gpus "$gpus" --shape $((gpus * 1028)),1328,2064 --epilogue bias+silu+gated
check moe_back_fp8 "$mkernel" run moe_ffn --exec cuda --check --timeout 5 --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 20 --burst 5 --back fp8
check moe_back_fp8_two_nodes "$mkernel" run moe_ffn --exec cuda --check --timeout 5 $nodes --moe 333,528,336,$((world * 5)),4 --iters 8 --back fp8 --dtype fp8 --b-layout nk
check moe_back_fp8_on_mma "$mkernel" run moe_ffn --exec cuda --check --timeout 5 --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 8 --back fp8
fp8_on_mma="--exec cuda --check --timeout 5 --engine mma --dtype fp8 --b-layout nk --iters 8"
for op in gemm_rs gemm_ar; do
    check ${op}_fp8_on_mma "$mkernel" run $op $fp8_on_mma --gpus "$gpus" --shape $((gpus * 1028)),520,2064
    check ${op}_fp8_on_mma_deterministic "$mkernel" run $op $fp8_on_mma --gpus "$gpus" --shape $((gpus * 520)),520,1040 --deterministic
    check ${op}_fp8_on_mma_one_shot "$mkernel" run $op $fp8_on_mma --gpus "$gpus" --shape $((gpus * 16)),520,1040 --shots 1
done
check moe_fp8_on_mma "$mkernel" run moe_dispatch_gemm $fp8_on_mma --gpus "$gpus" --moe 333,528,328,$((gpus * 5)),4
check moe_fp8_on_mma_128x64 "$mkernel" run moe_dispatch_gemm $fp8_on_mma --gpus "$gpus" --moe 333,528,328,$((gpus * 5)),4 --tile 128,64
check layer_fp8_on_mma "$mkernel" run moe_ffn $fp8_on_mma --gpus "$gpus" --moe 333,528,336,$((gpus * 5)),4
check fp8_two_nodes $run $nodes --shape $((world * 1028)),520,2064 --iters 8 --dtype fp8 --b-layout nk
check fp8_ranks_share_a_gpu $run --gpus $((gpus + 1)) --shape $(((gpus + 1) * 260)),200,1424 --iters 4 --dtype fp8 --b-layout nk
fp16="$run --dtype fp16 --iters 8"
check fp16_one_gpu $fp16 --gpus 1 --shape 390,200,328
check fp16_all_gpus $fp16 --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --burst 4
check fp16_nk_epilogue $fp16 --gpus "$gpus" --shape $((gpus * 520)),520,2064 --b-layout nk --epilogue bias+silu
check fp16_few_rows $fp16 --gpus "$gpus" --shape $((gpus * 8)),520,2064 --epilogue bias+gelu_tanh
check fp16_two_nodes $fp16 $nodes --shape $((world * 390)),200,328
check fp16_on_mma $fp16 --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --engine mma --epilogue bias
for op in gemm_rs gemm_ar; do
    check ${op}_fp16_on_mma "$mkernel" run $op --exec cuda --check --timeout 5 --engine mma --dtype fp16 --gpus "$gpus" --shape $((gpus * 1028)),520,1040 --iters 8 --epilogue residual+rmsnorm
    check ${op}_fp16_on_mma_deterministic "$mkernel" run $op --exec cuda --check --timeout 5 --engine mma --dtype fp16 --gpus "$gpus" --shape $((gpus * 520)),520,1040 --iters 8 --deterministic --b-layout nk
    check ${op}_fp16_on_mma_one_shot "$mkernel" run $op --exec cuda --check --timeout 5 --engine mma --dtype fp16 --gpus "$gpus" --shape $((gpus * 16)),520,1040 --iters 8 --shots 1
done
check all_gpus_nk $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 8 --b-layout nk
if [ "$gpus" -ge 2 ]; then
    check dedicated_ctas $run --gpus "$gpus" --shape $((gpus * 512)),512,1024 --iters 8 --roles $blocks_push
fi
check two_hundred_launches $run --gpus "$gpus" --shape $((gpus * 256)),512,1024 --iters 200 --burst 50
check ranks_share_a_gpu $run --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200,328 --iters 4
check on_engine_mma $run --engine mma --gpus $world --shape $((world * 390)),200,328 --iters 50 --burst 10
check on_engine_mma_nk $run --engine mma --gpus $world --shape $((world * 65)),200,328 --iters 8 --b-layout nk
check on_engine_mma_blocks_push $run --engine mma --gpus $world --shape $((world * 512)),512,1024 --iters 8 --roles $blocks_push
check on_engine_mma_one_shot $run --engine mma --gpus $world --shape $((world * 24)),200,328 --iters 20 --shots 1
check on_engine_mma_two_nodes $run --engine mma $nodes --shape $((world * 390)),200,328 --iters 20 --burst 5
check on_engine_mma_from_ptx env CUDA_FORCE_PTX_JIT=1 $run --engine mma --gpus $world --shape $((world * 390)),200,328 --iters 4
sum="$mkernel run gemm_rs --exec cuda --check --timeout 5 --engine mma --shape $((world * 390)),200,328 --iters 20"
check summed_on_engine_mma $sum --gpus $world
check summed_on_engine_mma_deterministic $sum --gpus $world --deterministic
check summed_on_engine_mma_two_nodes $sum $nodes
all="$mkernel run gemm_ar --exec cuda --check --timeout 5 --engine mma --shape $((world * 390)),200,328 --iters 20"
check summed_for_all_on_engine_mma $all --gpus $world
check summed_for_all_on_engine_mma_deterministic $all --gpus $world --deterministic
check summed_for_all_on_engine_mma_two_nodes $all $nodes
for how in "17,200,328" "17,200,328 --deterministic" "24,4104,1000 --b-layout nk" "200,4104,1000 --tile 128,128" "65,520,1000 --deterministic --tile 128,128"; do
    check "summed_on_engine_mma_one_shot_${how// /_}" "$mkernel" run gemm_rs --exec cuda --check --timeout 5 --engine mma --gpus $world --shape $((world * ${how%%,*})),${how#*,} --iters 20 --burst 5 --shots 1
    check "summed_for_all_on_engine_mma_one_shot_${how// /_}" "$mkernel" run gemm_ar --exec cuda --check --timeout 5 --engine mma --gpus $world --shape ${how} --iters 20 --burst 5 --shots 1
done
for how in "17,520,1040" "300,4104,520 --deterministic" "1500,4096,1024 --dtype fp16" "700,4104,520 --tile 256,128"; do # tiles that ranks share
    check "summed_for_all_shared_${how// /_}" "$mkernel" run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape ${how} --iters 20 --burst 5 --shots 3
done
for rows in 1 3; do check "summed_for_all_on_engine_mma_one_shot_$rows" "$mkernel" run gemm_ar --exec cuda --check --timeout 5 --engine mma --gpus $world --shape $rows,1032,1000 --iters 20 --burst 5 --shots 1; done
check gathered_on_engine_mma "$mkernel" run all_gather --exec cuda --check --engine mma --gpus $world --shape $((world * 65)),328 --iters 20
check exchanged_on_engine_mma "$mkernel" run all_to_all --exec cuda --check --engine mma $nodes --shape $((world * 64)),328 --iters 20
check added_on_engine_mma "$mkernel" run reduce_scatter --exec cuda --check --engine mma $nodes --shape $((world * 65)),328 --iters 20
check two_nodes $run $nodes --shape $((world * 390)),200,328 --iters 20 --burst 5
check staged_through_the_host env SOFTNIC=gpu=refuse $run $nodes --shape $((world * 390)),200,328 --iters 20
check ag_gemm_staged env MKERNEL_P2P=off $run $apart --shape $((world * 390)),200,328 --iters 8
check over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --shape $((world * 390)),200,328 --iters 20
check staged_over_srd env SOFTNIC=gpu=refuse,reorder=300us $run $nodes --fabric efa --shape $((world * 390)),200,328 --iters 20
if [ "$gpus" -ge 8 ]; then
    check four_nodes $run --nodes 4 --gpus $((gpus / 4)) --nic soft --shape $((gpus / 4 * 4 * 390)),200,328 --iters 20 --burst 5
fi
if [ "$gpus" -ge 2 ]; then
    endless="ag_gemm --shape $((gpus * 1024)),1024,4096"
    check a_rank_killed disturbed KILL 6 $endless
    check ring_attention_a_rank_killed disturbed KILL 6 ring_attention --attention 1,$((gpus * 1024)),8,8,128
    check usable_after_a_kill $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 2
    check a_rank_stopped disturbed STOP 11 $endless
fi
vmm="env MKERNEL_HEAP=vmm $run"
check heap_by_vmm $vmm --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10
check heap_by_vmm_one_gpu $vmm --gpus 1 --shape 390,200,328 --iters 5
check heap_by_vmm_ranks_share_a_gpu $vmm --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200,328 --iters 4
check heap_by_vmm_two_nodes $vmm $nodes --shape $((world * 390)),200,328 --iters 20 --burst 5
check heap_by_vmm_all_reduce env MKERNEL_HEAP=vmm "$mkernel" run gemm_ar --exec cuda --check --gpus "$gpus" --shape 1024,1032,1000 --iters 20 --burst 5
check heap_by_vmm_in_graphs env MKERNEL_HEAP=vmm "$mkernel" bench gemm_ar --exec cuda --gpus "$gpus" --shape 64,4096,2048 --iters 240 --burst 12
check heap_by_vmm_attention env MKERNEL_HEAP=vmm "$mkernel" run ring_attention --exec cuda --check --gpus "$gpus" --attention 1,$((gpus * 512)),8,8,128 --iters 8
check heap_by_vmm_under_mps under_mps $vmm --gpus 2 --shape 130,200,328 --iters 8
check ag_gemm_explained explained ag_gemm --shapes $((gpus * 1024)),1024,4096:$((gpus * 4096)),4096,4096
check gemm_ar_explained explained gemm_ar --shape $((gpus * 32)),4096,2048 --burst 8
check moe_explained explained moe_ffn --moe 1024,1024,512,$((gpus * 8)),8
check ag_gemm_traced traced ag_gemm --shape $((gpus * 1024)),1024,4096
# Few rows: in one shot, with tiles for them, with rows that no tile divides, and in two.
for op in ag_gemm gemm_rs gemm_ar; do
    run="$mkernel run $op --exec cuda --check --timeout 5 --gpus $gpus"
    for rows in 1 8 17 65 129; do
        check ${op}_one_shot_$rows $run --shape $((gpus * rows)),520,1000 --iters 20 --burst 5 --shots 1
    done
    check ${op}_one_shot_nk $run --shape $((gpus * 8)),4096,1024 --iters 20 --burst 5 --shots 1 --b-layout nk
    check ${op}_few_rows_in_two_shots $run --shape $((gpus * 8)),4096,1024 --iters 20 --burst 5 --shots 2
    check ${op}_one_shot_by_flags $run --shape $((gpus * 200)),4104,1000 --iters 20 --burst 5 --shots 1 # too many bytes for words
done
# Sums over ranks: the same.
for op in gemm_rs gemm_ar; do
    run="$mkernel run $op --exec cuda --check --timeout 5"
    own=compute=120
    [ $op = gemm_ar ] && [ "$gpus" -ge 2 ] && own=compute=112,intra_comm=8
    check ${op}_one_gpu $run --gpus 1 --shape 390,200,328 --iters 5
    check ${op}_odd_shape $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10
    check ${op}_odd_shape_deterministic $run --gpus "$gpus" --shape $((gpus * 390)),200,328 --iters 50 --burst 10 --deterministic
    check ${op}_one_shot_deterministic $run --gpus "$gpus" --shape $((gpus * 17)),520,1000 --iters 20 --burst 5 --shots 1 --deterministic
    check ${op}_nk $run --gpus "$gpus" --shape $((gpus * 65)),200,328 --iters 8 --b-layout nk
    check ${op}_tiles_256x128 $run --gpus "$gpus" --shape $((gpus * 512)),520,1024 --iters 8 --tile 256,128
    check ${op}_tiles_128x64 $run --gpus "$gpus" --shape $((gpus * 130)),520,72 --iters 8 --tile 128,64
    check ${op}_dedicated_ctas $run --gpus "$gpus" --shape $((gpus * 512)),512,1024 --iters 8 --roles $own
    check ${op}_two_hundred_launches $run --gpus "$gpus" --shape $((gpus * 256)),512,1024 --iters 200 --burst 50
    check ${op}_ranks_share_a_gpu "$mkernel" run $op --exec cuda --check --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200,328 --iters 4 --timeout 60
    check ${op}_two_nodes $run $nodes --shape $((world * 390)),200,328 --iters 8
    check ${op}_two_nodes_nk_deterministic $run $nodes --shape $((world * 390)),200,328 --iters 8 --b-layout nk --deterministic --pieces 2
    check ${op}_two_nodes_large_puts $run $nodes --shape $((world * 1100)),4104,72 --iters 20 --burst 5
    check ${op}_staged env MKERNEL_P2P=off $run $apart --shape $((world * 390)),200,328 --iters 8
    check ${op}_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --shape $((world * 390)),200,328 --iters 8
    check ${op}_few_rows $run --gpus "$gpus" --shape $((gpus * 8)),4096,1024 --iters 20 --burst 5
    check ${op}_one_slice_of_k $run --gpus "$gpus" --shape $((gpus * 512)),2048,64 --iters 20 --burst 5
    check ${op}_traced traced $op --shape $((gpus * 1024)),1024,1024
    fp8="$run --dtype fp8 --b-layout nk"
    check ${op}_fp8 $fp8 --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 20 --burst 5
    check ${op}_fp8_tiles_128x128 $fp8 --gpus "$gpus" --shape $((gpus * 520)),392,1040 --iters 8 --tile 128,128
    check ${op}_fp8_one_shot $fp8 --gpus "$gpus" --shape $((gpus * 16)),520,1040 --iters 20 --burst 5 --shots 1
    check ${op}_fp8_one_shot_of_tiles $fp8 --gpus "$gpus" --shape $((gpus * 200)),1032,1040 --iters 8 --shots 1
    check ${op}_fp8_deterministic $fp8 --gpus "$gpus" --shape $((gpus * 520)),520,1040 --iters 8 --deterministic
    check ${op}_fp8_two_nodes $fp8 $nodes --shape $((world * 520)),520,1040 --iters 8
    check ${op}_fp8_odd_rows $fp8 --gpus "$gpus" --shape $((gpus * 65)),520,1040 --iters 8
    check ${op}_fp8_odd_rows_in_two_shots $fp8 --gpus "$gpus" --shape $((gpus * 517)),520,1040 --iters 8 --shots 2
    check ${op}_fp8_odd_rows_mma $fp8 --gpus "$gpus" --shape $((gpus * 65)),520,1040 --iters 8 --engine mma
    fp16="$run --dtype fp16"
    check ${op}_fp16 $fp16 --gpus "$gpus" --shape $((gpus * 1028)),520,2064 --iters 20 --burst 5
    check ${op}_fp16_nk_tiles_128x64 $fp16 --gpus "$gpus" --shape $((gpus * 520)),392,1040 --iters 8 --tile 128,64 --b-layout nk
    check ${op}_fp16_one_shot $fp16 --gpus "$gpus" --shape $((gpus * 16)),520,1040 --iters 20 --burst 5 --shots 1
    check ${op}_fp16_one_shot_of_tiles $fp16 --gpus "$gpus" --shape $((gpus * 200)),1032,1040 --iters 8 --shots 1
    check ${op}_fp16_deterministic $fp16 --gpus "$gpus" --shape $((gpus * 520)),520,1040 --iters 8 --deterministic
    check ${op}_fp16_two_nodes_deterministic $fp16 $nodes --shape $((world * 520)),520,1040 --iters 8 --deterministic
    check ${op}_fp16_two_nodes $fp16 $nodes --shape $((world * 520)),520,1040 --iters 8
    check ${op}_fp16_norm $fp16 --gpus "$gpus" --shape $((gpus * 1026)),1288,520 --iters 8 --epilogue residual+rmsnorm
    check ${op}_fp16_norm_one_shot $fp16 --gpus "$gpus" --shape $((gpus * 150)),4104,520 --iters 8 --epilogue residual+rmsnorm --shots 1
done
# Last tiles that are cut along K.
for how in "" --deterministic "--b-layout nk" "--dtype fp16" "--epilogue residual+rmsnorm"; do
    check "gemm_rs_sliced_${how// /_}" "$mkernel" run gemm_rs --exec cuda --check --timeout 5 --gpus "$gpus" --shape 5120,5120,1024 --slices 4 --iters 8 $how
done
# Two CTAs that split K: whole tiles, last ones of fewer rows and of none of the second CTA, an odd number of stages, several tiles.
for op in gemm_rs gemm_ar; do
    split="$mkernel run $op --exec cuda --check --timeout 5 --gpus $gpus --split-k 2"
    check ${op}_split_k $split --shape $((gpus * 128)),4096,1040 --iters 20 --burst 5
    check ${op}_split_k_rest $split --shape $((gpus * 100)),4088,1096 --iters 20 --burst 5 --b-layout nk
    check ${op}_split_k_few $split --shape $((gpus * 20)),8192,4096 --iters 20 --burst 5
    check ${op}_split_k_waves $split --shape $((gpus * 350)),8192,520 --iters 8 --shots 1
done
check gemm_ar_split_k_shared $split --shape 300,4096,1040 --iters 20 --burst 5 --shots 3
check gemm_ar_split_k_norm $split --shape 100,8192,1040 --iters 20 --burst 5 --epilogue residual+rmsnorm
# Tiles of 192 columns, in one shot: one of a CTA and several, fewer rows and columns, both layouts, norms.
for layout in kn nk; do
    for op in ag_gemm gemm_rs gemm_ar; do
        middle="$mkernel run $op --exec cuda --check --timeout 5 --gpus $gpus --tile 128,192 --shots 1 --b-layout $layout"
        check ${op}_middle_$layout $middle --shape $((gpus * 192)),8192,1040 --iters 20 --burst 5
        check ${op}_middle_rest_$layout $middle --shape $((gpus * 350)),4104,1000 --iters 8
    done
done
check gemm_ar_middle_norm $middle --shape 384,8192,1040 --iters 20 --burst 5 --epilogue residual+rmsnorm
# Blocks of columns.
columns="$mkernel run gemm_ar --exec cuda --check --timeout 10 --shots 4 --iters 20"
for engine in wgmma mma; do
    check gemm_ar_columns_$engine $columns --gpus $gpus --engine $engine --shape 70,4096,1040 --burst 5
    check gemm_ar_columns_nodes_$engine $columns $nodes --engine $engine --shape 17,5120,1040
    check gemm_ar_columns_rest_$engine $columns $nodes --engine $engine --shape 300,4160,520 --deterministic
    check gemm_ar_columns_fp8_$engine $columns $nodes --engine $engine --dtype fp8 --b-layout nk --shape 100,4096,1024
done
check gemm_ar_columns_norm $columns $nodes --shape 100,8192,1040 --epilogue residual+rmsnorm
check gemm_ar_columns_bits $columns $nodes --shape 64,4096,8192 --same-bits
# Rows that the ranks do not share evenly: a decoder's few, and many.
run="$mkernel run gemm_ar --exec cuda --check --timeout 5"
for rows in 1 3 17 1000 4097; do
    check gemm_ar_any_rows_$rows $run --gpus "$gpus" --shape $rows,1032,1000 --iters 20 --burst 5
    check gemm_ar_any_rows_${rows}_in_two_shots $run --gpus "$gpus" --shape $rows,1032,1000 --iters 20 --burst 5 --shots 2
    check gemm_ar_any_rows_${rows}_fp8 $run --gpus "$gpus" --shape $rows,1032,1040 --iters 20 --burst 5 --dtype fp8 --b-layout nk
done
check gemm_ar_any_rows_deterministic $run --gpus "$gpus" --shape 1001,1032,1000 --iters 20 --burst 5 --shots 2 --deterministic
check gemm_ar_any_rows_one_shot_deterministic $run --gpus "$gpus" --shape 3,1032,1000 --iters 20 --burst 5 --deterministic
check gemm_ar_any_rows_two_nodes $run $nodes --shape 1001,1032,1000 --iters 8
check gemm_ar_any_rows_two_nodes_one_row $run $nodes --shape 1,1032,1000 --iters 8 --deterministic
if [ "$gpus" -ge 2 ]; then # two auxiliary warps of a block, and one that sends
    check gemm_ar_two_auxiliary_warps "$mkernel" run gemm_ar --exec cuda --check --timeout 5 --gpus "$gpus" --shape $((gpus * 512)),520,1024 --iters 8 --roles compute=16,intra_comm=2w
fi
run="$mkernel run all_gather --exec cuda --check --timeout 5"
check all_gather_one_gpu $run --gpus 1 --shape 390,200 --iters 5
check all_gather_odd_rows $run --gpus "$gpus" --shape $((gpus * 333)),200 --iters 50 --burst 10
check all_gather_large $run --gpus "$gpus" --shape $((gpus * 4096)),4096 --iters 4
check all_gather_ranks_share_a_gpu "$mkernel" run all_gather --exec cuda --check --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200 --iters 4 --timeout 60
check all_gather_two_nodes $run $nodes --shape $((world * 390)),200 --iters 8
check all_gather_staged env MKERNEL_P2P=off $run $apart --shape $((world * 390)),200 --iters 8
check all_gather_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --shape $((world * 390)),200 --iters 8
check all_gather_fp8 $run --gpus "$gpus" --shape $((gpus * 333)),208 --iters 20 --burst 5 --dtype fp8
check all_gather_fp16 $run --gpus "$gpus" --shape $((gpus * 333)),200 --iters 20 --burst 5 --dtype fp16
check all_gather_bytes_two_nodes $run $nodes --shape $((world * 390)),208 --iters 8 --dtype bytes
run="$mkernel run all_to_all --exec cuda --check --timeout 5"
check all_to_all_one_gpu $run --gpus 1 --shape 390,200 --iters 5
check all_to_all_odd_rows $run --gpus "$gpus" --shape $((gpus * gpus * 333)),200 --iters 50 --burst 10
check all_to_all_large $run --gpus "$gpus" --shape $((gpus * gpus * 2048)),4096 --iters 4
check all_to_all_ranks_share_a_gpu "$mkernel" run all_to_all --exec cuda --check --gpus $((gpus + 1)) --shape $(((gpus + 1) * (gpus + 1) * 65)),200 --iters 4 --timeout 60
check all_to_all_two_nodes $run $nodes --shape $((world * world * 130)),200 --iters 8
check all_to_all_staged env MKERNEL_P2P=off $run $apart --shape $((world * world * 130)),200 --iters 8
check all_to_all_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --shape $((world * world * 130)),200 --iters 8
check all_to_all_fp8 $run --gpus "$gpus" --shape $((gpus * gpus * 333)),208 --iters 20 --burst 5 --dtype fp8
check all_to_all_fp16 $run --gpus "$gpus" --shape $((gpus * gpus * 333)),200 --iters 20 --burst 5 --dtype fp16
check all_to_all_bytes_two_nodes $run $nodes --shape $((world * world * 130)),208 --iters 8 --dtype bytes
run="$mkernel run reduce_scatter --exec cuda --check --timeout 5"
check reduce_scatter_one_gpu $run --gpus 1 --shape 390,200 --iters 5
check reduce_scatter_odd_rows $run --gpus "$gpus" --shape $((gpus * 333)),200 --iters 50 --burst 10
check reduce_scatter_fp16 $run --gpus "$gpus" --shape $((gpus * 333)),200 --iters 50 --burst 10 --dtype fp16
check reduce_scatter_large $run --gpus "$gpus" --shape $((gpus * 4096)),4096 --iters 4
check reduce_scatter_ranks_share_a_gpu "$mkernel" run reduce_scatter --exec cuda --check --gpus $((gpus + 1)) --shape $(((gpus + 1) * 65)),200 --iters 4 --timeout 60
check reduce_scatter_fp16_two_nodes $run $nodes --shape $((world * 390)),200 --iters 8 --dtype fp16
check reduce_scatter_two_nodes $run $nodes --shape $((world * 390)),200 --iters 8
check reduce_scatter_staged env MKERNEL_P2P=off $run $apart --shape $((world * 390)),200 --iters 8
check reduce_scatter_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --shape $((world * 390)),200 --iters 8
# On both engines: mma's blocks push with all their threads, of their own or before they compute.
for engine in wgmma mma; do
    name=ring_attention on="--exec cuda --check --engine $engine" tiles='192,96 128,176 128,128' tiles_of_128=128,128 beside=3
    [ "$engine" = wgmma ] || name=ring_attention_on_mma tiles=256,64 tiles_of_128='256,32 128,64' beside=2
    run="$mkernel run ring_attention $on --timeout 5"
    check ${name}_one_gpu $run --gpus 1 --attention 2,1000,4,2,128 --iters 5
    check ${name}_one_gpu_causal $run --gpus 1 --attention 2,1000,4,4,64 --causal --iters 5
    check ${name}_odd_rows $run --gpus "$gpus" --attention 1,$((gpus * 333)),4,2,128 --iters 20 --burst 5
    check ${name}_causal $run --gpus "$gpus" --attention 2,$((gpus * 666)),4,1,64 --causal --iters 20 --burst 5
    check ${name}_any_length $run --gpus "$gpus" --attention 2,$((gpus * 666 + 1)),4,1,64 --causal --iters 20 --burst 5
    check ${name}_fewer_rows_than_ranks $run --gpus "$gpus" --attention 2,1,4,1,128 --iters 20 --burst 5
    check ${name}_long_sequence $run --gpus "$gpus" --attention 1,98304,8,2,128 --iters 2
    check ${name}_contiguous $run --gpus "$gpus" --attention 2,$((gpus * 333)),4,1,64 --causal --split contiguous --iters 20 --burst 5
    for tile in $tiles; do
        check ${name}_heads_of_64_${tile/,/x} $run --gpus "$gpus" --attention 2,$((gpus * 650)),4,2,64 --causal --iters 20 --burst 5 --tile $tile
    done
    for tile in $tiles_of_128; do
        check ${name}_heads_of_128_${tile/,/x} $run --gpus "$gpus" --attention 2,$((gpus * 650)),4,2,128 --causal --iters 20 --burst 5 --tile $tile
    done
    if [ "$gpus" -ge 2 ]; then
        check ${name}_dedicated_ctas $run --gpus "$gpus" --attention 1,$((gpus * 600)),8,8,128 --iters 20 --burst 5 --roles $blocks_push
        check ${name}_${beside}_push_beside_each $run --gpus "$gpus" --attention 1,$((gpus * 600)),8,8,128 --causal --iters 20 --burst 5 --roles compute=$sms,intra_comm=${beside}w
        check ${name}_paced $run --gpus "$gpus" --attention 1,$((gpus * 600)),8,8,128 --iters 20 --burst 5 --pace 387 --pieces 8
    fi
    check ${name}_one_query_tile $run --gpus "$gpus" --attention 1,$gpus,1,1,128 --iters 20 --burst 5
    check ${name}_traced traced ring_attention --engine $engine --attention 1,$((gpus * 1024)),8,8,128
    check ${name}_two_hundred_launches $run --gpus "$gpus" --attention 1,$((gpus * 512)),2,1,128 --causal --iters 200 --burst 50
    check ${name}_ranks_share_a_gpu "$mkernel" run ring_attention $on --gpus $((gpus + 1)) --attention 1,$(((gpus + 1) * 520)),4,2,128 --iters 4 --timeout 60
    check ${name}_two_nodes $run $nodes --attention 1,$((world * 520)),4,2,128 --causal --iters 8
    check ${name}_without_p2p env MKERNEL_P2P=off $run $apart --attention 1,$((world * 520)),4,2,128 --causal --iters 8
    check ${name}_staged env SOFTNIC=gpu=refuse $run $nodes --attention 1,$((world * 520)),4,2,128 --iters 8
    check ${name}_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --attention 1,$((world * 520)),4,2,128 --causal --iters 8
done
check ring_attention_on_mma_from_ptx env CUDA_FORCE_PTX_JIT=1 $run --gpus "$gpus" --attention 1,$((gpus * 520)),4,2,128 --causal --iters 4
run="$mkernel run moe_ffn --exec cuda --check --timeout 5"
check layer_one_gpu $run --gpus 1 --moe 300,520,328,8,3 --iters 8
check layer_odd_tokens $run --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 50 --burst 10
check layer_nk $run --gpus "$gpus" --moe 65,200,72,$((gpus * 3)),3 --iters 8 --b-layout nk
check layer_deterministic $run --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 8 --deterministic
check layer_tiles_128x128 $run --gpus "$gpus" --moe 333,520,520,$((gpus * 4)),4 --iters 8 --tile 128,128
check layer_small $run --gpus "$gpus" --moe 1,8,8,$gpus,1 --iters 8
check layer_own_tokens_apart $run --gpus "$gpus" --moe 2048,256,256,$((gpus * 2)),2 --iters 8
check layer_one_expert $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing one --iters 8
check layer_few_experts $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 8)),4 --routing few --iters 8
check layer_a_rank_without_tokens $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing none --iters 8
check layer_two_hundred_launches $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 200 --burst 50
check layer_own_roles $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 20 --burst 5 --roles compute=80,intra_comm=32,inter_reduce=20
check layer_skewed $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --skew 1.5 --iters 8
check layer_ranks_share_a_gpu "$mkernel" run moe_ffn --exec cuda --check --gpus $((gpus + 1)) --moe 130,200,328,$(((gpus + 1) * 4)),3 --iters 4 --timeout 60
check layer_two_nodes $run $nodes --moe 333,520,328,$((world * 5)),4 --iters 8
check layer_staged env MKERNEL_P2P=off $run $apart --moe 333,520,328,$((world * 5)),4 --iters 8
check layer_on_engine_mma $run --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 50 --burst 10
check layer_on_engine_mma_one_gpu $run --engine mma --gpus 1 --moe 300,520,328,8,3 --iters 8
check layer_on_engine_mma_nk $run --engine mma --gpus "$gpus" --moe 65,200,72,$((gpus * 3)),3 --iters 8 --b-layout nk
check layer_on_engine_mma_deterministic $run --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 8 --deterministic
check layer_on_engine_mma_tiles_64x64 $run --engine mma --gpus "$gpus" --moe 333,520,520,$((gpus * 4)),4 --iters 8 --tile 64,64
check layer_on_engine_mma_tiles_128x128 $run --engine mma --gpus "$gpus" --moe 1,8,8,$gpus,1 --iters 8 --tile 128,128
check layer_on_engine_mma_own_tokens_apart $run --engine mma --gpus "$gpus" --moe 2048,256,256,$((gpus * 2)),2 --iters 8
check layer_on_engine_mma_one_expert $run --engine mma --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing one --iters 8
check layer_on_engine_mma_skewed $run --engine mma --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --skew 1.5 --iters 8
check layer_on_engine_mma_a_rank_without_tokens $run --engine mma --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing none --iters 8
check layer_on_engine_mma_two_hundred_launches $run --engine mma --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 200 --burst 50
check layer_on_engine_mma_two_nodes $run --engine mma $nodes --moe 333,520,328,$((world * 5)),4 --iters 8
check layer_on_engine_mma_from_ptx env CUDA_FORCE_PTX_JIT=1 $run --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 4
fp8="$run --dtype fp8 --b-layout nk"
check layer_fp8_one_gpu $fp8 --gpus 1 --moe 300,528,336,8,3 --iters 8
check layer_fp8_odd_tokens $fp8 --gpus "$gpus" --moe 333,528,336,$((gpus * 5)),4 --iters 50 --burst 10
check layer_fp8_deterministic $fp8 --gpus "$gpus" --moe 333,528,336,$((gpus * 5)),4 --iters 8 --deterministic
check layer_fp8_small $fp8 --gpus "$gpus" --moe 1,16,16,$gpus,1 --iters 8
check layer_fp8_two_hundred_launches $fp8 --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 200 --burst 50
check layer_fp8_skewed $fp8 --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --skew 1.5 --iters 8
check layer_fp8_two_nodes $fp8 $nodes --moe 333,528,336,$((world * 5)),4 --iters 8
check layer_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --moe 333,520,328,$((world * 5)),4 --iters 8

run="$mkernel run moe_dispatch_gemm --exec cuda --check --timeout 5"
check moe_one_gpu $run --gpus 1 --moe 300,520,328,8,3 --iters 8
check moe_odd_tokens $run --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 50 --burst 10
check moe_nk $run --gpus "$gpus" --moe 65,200,72,$((gpus * 3)),3 --iters 8 --b-layout nk
fp8="$run --dtype fp8 --b-layout nk"
check moe_fp8_one_gpu $fp8 --gpus 1 --moe 300,528,328,8,3 --iters 8
check moe_fp8_odd_tokens $fp8 --gpus "$gpus" --moe 333,528,328,$((gpus * 5)),4 --iters 50 --burst 10
check moe_fp8_tiles_128x128 $fp8 --gpus "$gpus" --moe 333,528,328,$((gpus * 4)),4 --iters 8 --tile 128,128
check moe_fp8_tiles_128x64 $fp8 --gpus "$gpus" --moe 65,208,72,$((gpus * 3)),3 --iters 8 --tile 128,64
check moe_fp8_two_hundred_launches $fp8 --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 200 --burst 50
check moe_fp8_two_nodes $fp8 $nodes --moe 333,528,328,$((world * 5)),4 --iters 8
check moe_tiles_128x128 $run --gpus "$gpus" --moe 333,520,520,$((gpus * 4)),4 --iters 8 --tile 128,128
check moe_tiles_128x64 $run --gpus "$gpus" --moe 1,8,8,$gpus,1 --iters 8 --tile 128,64
check moe_one_expert $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing one --iters 8
check moe_few_experts $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 8)),4 --routing few --iters 8
check moe_a_rank_without_tokens $run --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing none --iters 8
check moe_many_experts $run --gpus "$gpus" --moe 2048,512,256,$((gpus * 128)),8 --iters 8
check moe_two_hundred_launches $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 200 --burst 50
check moe_own_roles $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --iters 20 --burst 5 --roles compute=100,intra_comm=32
check moe_skewed $run --gpus "$gpus" --moe 512,512,512,$((gpus * 8)),8 --skew 1.5 --iters 8
check moe_ranks_share_a_gpu "$mkernel" run moe_dispatch_gemm --exec cuda --check --gpus $((gpus + 1)) --moe 130,200,328,$(((gpus + 1) * 4)),3 --iters 4 --timeout 60
check moe_two_nodes $run $nodes --moe 333,520,328,$((world * 5)),4 --iters 8
check moe_staged env MKERNEL_P2P=off $run $apart --moe 333,520,328,$((world * 5)),4 --iters 8
check moe_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --moe 333,520,328,$((world * 5)),4 --iters 8
check moe_on_engine_mma $run --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 50 --burst 10
check moe_on_engine_mma_nk $run --engine mma --gpus "$gpus" --moe 65,200,72,$((gpus * 3)),3 --iters 8 --b-layout nk
check moe_on_engine_mma_tiles_64x64 $run --engine mma --gpus "$gpus" --moe 333,520,520,$((gpus * 4)),4 --iters 8 --tile 64,64
check moe_on_engine_mma_tiles_128x128 $run --engine mma --gpus "$gpus" --moe 1,8,8,$gpus,1 --iters 8 --tile 128,128
check moe_on_engine_mma_one_expert $run --engine mma --gpus "$gpus" --moe 1000,256,256,$((gpus * 4)),4 --routing one --iters 8
check moe_on_engine_mma_two_nodes $run --engine mma $nodes --moe 333,520,328,$((world * 5)),4 --iters 8
check moe_on_engine_mma_from_ptx env CUDA_FORCE_PTX_JIT=1 $run --engine mma --gpus "$gpus" --moe 333,520,328,$((gpus * 5)),4 --iters 4
for op in moe_dispatch moe_combine; do
    run="$mkernel run $op --exec cuda --check --timeout 5"
    check ${op}_one_gpu $run --gpus 1 --moe 300,520,8,3 --iters 8
    check ${op}_odd_tokens $run --gpus "$gpus" --moe 333,520,$((gpus * 5)),4 --iters 50 --burst 10
    check ${op}_decode $run --gpus "$gpus" --moe 16,7168,$((gpus * 32)),8 --iters 50 --burst 10
    check ${op}_large $run --gpus "$gpus" --moe 4096,7168,$((gpus * 32)),8 --iters 4
    check ${op}_one_expert $run --gpus "$gpus" --moe 1000,256,$((gpus * 4)),4 --routing one --iters 8
    check ${op}_a_rank_without_tokens $run --gpus "$gpus" --moe 1000,256,$((gpus * 4)),4 --routing none --iters 8
    check ${op}_many_experts $run --gpus "$gpus" --moe 2048,512,$((gpus * 128)),8 --iters 8
    check ${op}_two_hundred_launches $run --gpus "$gpus" --moe 512,512,$((gpus * 8)),8 --iters 200 --burst 50
    check ${op}_few_sms $run --gpus "$gpus" --moe 512,512,$((gpus * 8)),8 --iters 20 --burst 5 --sms 12
    check ${op}_two_nodes $run $nodes --moe 333,520,$((world * 5)),4 --iters 8
    check ${op}_staged env MKERNEL_P2P=off $run $apart --moe 333,520,$((world * 5)),4 --iters 8
    check ${op}_over_srd env SOFTNIC=reorder=300us $run $nodes --fabric efa --moe 333,520,$((world * 5)),4 --iters 8
    check ${op}_on_engine_mma $run --engine mma --gpus "$gpus" --moe 333,520,$((gpus * 5)),4 --iters 50 --burst 10
    check ${op}_on_engine_mma_two_nodes $run --engine mma $nodes --moe 333,520,$((world * 5)),4 --iters 8
    halves="$run --launch halves"
    check ${op}_in_halves $halves --gpus "$gpus" --moe 333,520,$((gpus * 5)),4 --iters 50 --burst 10 --tokens-now random
    check ${op}_in_halves_large $halves --gpus "$gpus" --moe 4096,7168,$((gpus * 32)),8 --iters 4
    check ${op}_in_halves_few_sms $halves --gpus "$gpus" --moe 512,512,$((gpus * 8)),8 --iters 20 --burst 5 --sms 12
    check ${op}_in_halves_two_nodes $halves $nodes --moe 333,520,$((world * 5)),4 --iters 8
    check ${op}_in_halves_over_srd env SOFTNIC=reorder=300us $halves $nodes --fabric efa --moe 333,520,$((world * 5)),4 --iters 8
    check ${op}_in_halves_on_engine_mma $halves --engine mma --gpus "$gpus" --moe 333,520,$((gpus * 5)),4 --iters 50 --burst 10
    check ${op}_traced traced $op --moe 1024,1024,$((gpus * 8)),8
    check ${op}_bench "$mkernel" bench $op --exec cuda --gpus "$gpus" --moe 300,512,$((gpus * 8)),8 --iters 8 --timeout 10
done
for op in moe_dispatch_gemm moe_ffn moe_dispatch moe_combine; do
    inner=; case $op in moe_ffn | *gemm) inner=256, ;; esac
    for engine in wgmma mma; do
        room="--exec cuda --check --timeout 5 --engine $engine --moe 512,512,$inner$((world * 8)),4"
        check ${op}_overflow_on_engine_$engine overflows $op --gpus "$gpus" --engine $engine --moe 512,512,$inner$((gpus * 8)),4 --capacity 1000
        check ${op}_overflow_two_nodes_on_engine_$engine overflows $op $nodes --engine $engine --moe 512,512,$inner$((world * 8)),4 --capacity 1000
        check ${op}_capacity_on_engine_$engine "$mkernel" run $op $room $nodes --iters 8 --capacity 3000
        check ${op}_drops_on_engine_$engine "$mkernel" run $op $room $nodes --iters 8 --capacity 1600 --overflow drop
        check ${op}_counts_on_engine_$engine "$mkernel" run $op $room --gpus "$gpus" --tokens-now random --iters 200 --burst 20
        check ${op}_counts_two_nodes_on_engine_$engine "$mkernel" run $op $room $nodes --iters 8 --tokens-now random
    done
done
check moe_dispatch_fp8 "$mkernel" run moe_dispatch --exec cuda --check --timeout 5 --gpus "$gpus" --moe 333,528,$((gpus * 5)),4 --iters 50 --burst 10 --dtype fp8
for op in moe_dispatch_gemm moe_ffn; do
    name=moe
    [ $op = moe_ffn ] && name=layer
    check ${name}_traced traced $op --moe 1024,1024,512,$((gpus * 8)),8
    # A bench replays CUDA graphs, whose ids change between replays, and checks them.
    check ${name}_graphs "$mkernel" bench $op --exec cuda --gpus "$gpus" --shapes 300,512,520,$((gpus * 8)),8 --iters 8 --timeout 10
done
for op in ag_gemm gemm_rs gemm_ar all_gather all_to_all reduce_scatter ring_attention moe_dispatch_gemm moe_ffn moe_dispatch moe_combine; do
    run="$mkernel run $op --exec cuda --check --timeout 5 --iters 20 --burst 5"
    check slices_${op}_2_ranks env CUDA_VISIBLE_DEVICES=0 $run --gpus 2 $(small_problem $op 2)
    check slices_${op}_4_ranks env CUDA_VISIBLE_DEVICES=0 $run --gpus 4 $(small_problem $op 4)
    if command -v nvidia-cuda-mps-control >/dev/null; then
        check mps_${op}_2_ranks under_mps $run --gpus 2 $(small_problem $op 2)
        check mps_${op}_4_ranks under_mps $run --gpus 4 $(small_problem $op 4)
    else
        skip mps_${op} "no nvidia-cuda-mps-control on this machine"
    fi
done
if command -v compute-sanitizer >/dev/null; then
    for op in ag_gemm gemm_rs gemm_ar; do
        small="$mkernel run $op --exec cuda --gpus $((gpus < 2 ? 1 : 2)) --shape 780,200,328 --iters 1 --timeout 60"
        check ${op}_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small
        small="$mkernel run $op --exec cuda --gpus 1 --shape 390,200,328 --iters 1 --timeout 60"
        judge ${op}_racecheck 120 "$build/gpu.log" raced NOWHERE $small
    done
    small="$mkernel run ag_gemm --exec cuda --dtype fp8 --b-layout nk --tile 256,256 --shape 520,264,656 --iters 1 --timeout 60"
    check fp8_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small --gpus $((gpus < 2 ? 1 : 2))
    judge fp8_racecheck 120 "$build/gpu.log" raced 'ptx_load_shared|ptx_bulk_load' $small --gpus 1
    small="$mkernel run ring_attention --exec cuda --gpus $((gpus < 2 ? 1 : 2)) --attention 1,$((gpus < 2 ? 400 : 800)),2,1,128 --iters 1 --timeout 60"
    check ring_attention_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small
    check ring_attention_on_mma_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small --engine mma
    for op in moe_dispatch_gemm moe_ffn; do
        small="$mkernel run $op --exec cuda --gpus $((gpus < 2 ? 1 : 2)) --moe 130,200,328,8,3 --iters 1 --timeout 60"
        check ${op}_memcheck compute-sanitizer --error-exitcode 9 --target-processes all --tool memcheck $small
        small="$mkernel run $op --exec cuda --gpus 1 --moe 130,200,328,8,3 --iters 1 --timeout 60"
        judge ${op}_racecheck 120 "$build/gpu.log" raced 'rows_max.*cta_rows' $small
    done
else
    skip memcheck "no compute-sanitizer on the PATH"
fi

[ "${2:-}" != bench ] || . "$tests/gpu_host_bench.sh"
if [ $((passed + failed + skipped)) = 0 ]; then
    echo "ONLY=${ONLY:-} matches no check$([ "${2:-}" = bench ] && echo ' and no table') of $gpus GPUs"
    exit 2
fi
echo "$passed passed, $failed failed, $skipped skipped in $SECONDS s, on $gpus GPUs"
[ "$failed" = 0 ]
