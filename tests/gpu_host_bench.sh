# The tables of docs/FIGURES.md: `gpu_host.sh BUILD bench` sources this.

square=4096,512,4096:8192,1024,8192:16384,2048,16384:32768,4096,32768
wide=2048,4096,8192:4096,3584,8192:8192,3584,8192:8192,8192,8192:16384,3584,8192:32768,4096,8192
sums=8192,8192,1024:16384,16384,2048:32768,32768,4096:8192,8192,3584:16384,8192,3584:2048,8192,4096:2048,4096,4096
bench="--exec cuda --iters 40 --timeout 10"
table bench_engine 120 "$build/tests/gpu_gemm" bench 4 30
table bench_fp8 120 "$build/tests/gpu_fp8" bench 20
table bench_quantize 60 "$build/tests/gpu_quantize" bench
table bench_grouped 120 "$build/tests/gpu_grouped" bench 20 10
table bench_attention 120 "$build/tests/gpu_attention" bench 20 10
table bench_second_engine 120 "$build/tests/gpu_mma" bench 4 30
table bench_second_engine_attention 120 "$build/tests/gpu_mma_attention" bench 20 10
heads=16,16,128 attention=
for rows in 768 3072 6144 12288; do # a rank
    attention=$attention${attention:+:}4,$((gpus * rows)),$heads
done
for mask in '' --causal; do
    table bench_ring_attention${mask:+_causal} 300 "$mkernel" bench ring_attention $bench --gpus "$gpus" --shapes $attention $mask --vs torch --csv "$build/ring_attention${mask:+_causal}.csv"
done
for mask in '' --causal; do # and the second engine, beside itself on one GPU
    table bench_ring_attention_on_mma${mask:+_causal} 200 "$mkernel" bench ring_attention $bench --gpus "$gpus" --engine mma --shapes $attention $mask --csv "$build/ring_attention_mma${mask:+_causal}.csv"
done
# The kernel on one GPU beside cuDNN, with heads of 64 in both tiles; 768 rows a rank by size of a piece and by warps that push.
for tile in 192,96 128,176; do
    for mask in '' --causal; do
        table bench_attention_heads_of_64_${tile/,/x}${mask:+_causal} 40 "$mkernel" bench ring_attention $bench --gpus 1 --shapes 1,8192,32,32,64 $mask --tile $tile
    done
done
if [ "$gpus" -ge 2 ]; then
    for pieces in 12 6 3; do
        for warps in 2 3; do
            table bench_ring_attention_768_rows_${pieces}_pieces_${warps}_warps 40 "$mkernel" bench ring_attention $bench --gpus "$gpus" --shapes 4,$((gpus * 768)),$heads --pieces $pieces --pace none --roles compute=132,intra_comm=${warps}w
        done
    done
    table bench_ring_attention_by_thread_blocks 60 "$mkernel" bench ring_attention $bench --gpus "$gpus" --shapes 4,$((gpus * 768)),$heads:4,$((gpus * 3072)),$heads --roles compute=116,intra_comm=16
fi
experts=7168,2048,$((gpus * 16)),8 moe=
for tokens in 512 1024 2048 4096 8192; do # a rank
    moe=$moe${moe:+:}$tokens,$experts
done
table bench_moe_tables 60 "$build/tests/gpu_route" bench
for op in moe_dispatch moe_combine; do
    for tokens in 16 64 128 4096; do
        table bench_${op}_$tokens 100 "$mkernel" bench $op $bench --gpus "$gpus" --moe $tokens,7168,$((gpus * 32)),8
    done
done
for op in moe_dispatch_gemm moe_ffn; do
    name=bench_moe
    [ $op = moe_ffn ] && name=bench_layer
    table $name 300 "$mkernel" bench $op $bench --gpus "$gpus" --shapes $moe --csv "$build/$op.csv"
    table ${name}_skewed 200 "$mkernel" bench $op $bench --gpus "$gpus" --shapes 512,$experts:1024,$experts:4096,$experts --skew zipf:1.2
    table ${name}_one_expert 200 "$mkernel" bench $op $bench --gpus "$gpus" --shapes 512,$experts:1024,$experts:4096,$experts --skew one
done
table bench_ring 60 "$build/tests/gpu_ring" bench
table bench_memory_between_processes 110 "$build/tests/gpu_fabric" bench
table bench_collective 120 "$mkernel" bench collective --exec cuda --gpus "$gpus" -b 64KB -e 256MB -f 8
table bench_ag_gemm 400 "$mkernel" bench ag_gemm $bench --gpus "$gpus" --shapes $square:$wide --vs torch --csv "$build/ag_gemm.csv"
table bench_ag_gemm_fp8 200 "$mkernel" bench ag_gemm $bench --gpus "$gpus" --dtype fp8 --b-layout nk --shapes $square:$wide --csv "$build/ag_gemm_fp8.csv"
for op in gemm_rs gemm_ar; do
    table bench_${op}_fp8 200 "$mkernel" bench $op $bench --gpus "$gpus" --dtype fp8 --b-layout nk --shapes $sums --csv "$build/${op}_fp8.csv"
done
for heap in ipc vmm ipc vmm; do # in turn, in one call
    table bench_heap_by_$heap 120 env MKERNEL_HEAP=$heap "$mkernel" bench ag_gemm $bench --gpus "$gpus" --shapes 8192,1024,8192:16384,2048,16384
    table bench_heap_by_${heap}_all_reduce 120 env MKERNEL_HEAP=$heap "$mkernel" bench gemm_ar ${bench/--iters 40/--iters 480 --burst 12} --gpus "$gpus" --shapes 16,8192,4096:512,8192,4096:8192,8192,1024
done
table bench_ag_gemm_traced 120 "$mkernel" bench ag_gemm $bench --gpus "$gpus" --shapes 8192,1024,8192:16384,2048,16384 --traced
table bench_gemm_rs 400 "$mkernel" bench gemm_rs $bench --gpus "$gpus" --shapes $sums --vs torch --csv "$build/gemm_rs.csv"
table bench_gemm_ar 400 "$mkernel" bench gemm_ar $bench --gpus "$gpus" --shapes $sums --vs torch --csv "$build/gemm_ar.csv"
few=
for nk in 8192,4096 4096,8192; do
    for rows in 16 64 256 512 1024 2048; do few=$few${few:+:}$rows,$nk; done
done
table bench_engine_few_rows 60 "$build/tests/gpu_gemm" few 2 0
for op in ag_gemm gemm_rs gemm_ar; do
    table bench_${op}_few_rows 120 "$mkernel" bench $op ${bench/--iters 40/--iters 480 --burst 12} --gpus "$gpus" --shapes $few --vs torch
done
for op in gemm_rs gemm_ar; do
    table bench_${op}_one_gpu 60 "$mkernel" bench $op $bench --gpus 1 --shapes 8192,8192,1024:8192,8192,3584
    for sums in "" --same-bits; do
        table bench_${op}_same_bits${sums:+_everywhere} 200 "$mkernel" bench $op $bench --gpus "$gpus" --shapes 8192,8192,$((7168 / gpus)):8192,8192,$((8192 / gpus)):8192,8192,1024:64,8192,$((4096 / gpus)) $sums
    done
    table bench_${op}_deterministic 200 "$mkernel" bench $op $bench --gpus "$gpus" --shapes 8192,8192,1024:16384,16384,2048 --deterministic
done
rm -f "$build/gpu.plans"
for op in ag_gemm gemm_rs moe_dispatch_gemm; do # the whole way of a tuned plan: found, kept, taken
    shape=8192,8192,1024 space='tile;pace;roles'
    [ $op = ag_gemm ] && shape=8192,1024,8192
    [ $op = moe_dispatch_gemm ] && shape=1024,$experts space='tile;chunk-rows;roles'
    table bench_tune_$op 120 "$mkernel" tune $op --exec cuda --gpus "$gpus" --shapes $shape --iters 40 --rounds 1 --space "$space" --tuning "$build/gpu.plans"
    if [ -e "$build/gpu.plans" ]; then
        table bench_tuned_$op 60 "$mkernel" bench $op $bench --gpus "$gpus" --shapes $shape --tuning "$build/gpu.plans"
    else
        skip bench_tuned_$op "nothing has been tuned"
    fi
done
if [ "$gpus" -ge 2 ]; then
    table bench_2_nodes_moe 120 "$mkernel" bench moe_dispatch_gemm $bench --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 4096,$experts
    for mask in '' --causal; do
        table bench_2_nodes_ring_attention${mask:+_causal} 120 "$mkernel" bench ring_attention $bench --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 4,$((world * 12288)),$heads $mask
    done
    table bench_2_nodes_layer 120 "$mkernel" bench moe_ffn $bench --nodes 2 --gpus $((gpus / 2)) --nic soft --shapes 4096,$experts
fi
if [ "$gpus" -ge 2 ]; then # a model of transformers beside PyTorch's tensor parallelism
    table bench_torch_model 240 modelled --budget 180
    table bench_torch_model_experts 240 modelled --model qwen3-moe --layers 4 --budget 120
fi
for of in 2 4; do # nodes of as many GPUs as there are, two at least
    [ "$gpus" -ge $((2 * of)) ] || continue
    for op in ag_gemm gemm_rs gemm_ar; do
        shapes=16384,16384,2048
        [ $op = ag_gemm ] && shapes=8192,1024,8192:16384,2048,16384
        table bench_${of}_nodes_$op 120 "$mkernel" bench $op $bench --nodes $of --gpus $((gpus / of)) --nic soft --shapes $shapes
    done
done
