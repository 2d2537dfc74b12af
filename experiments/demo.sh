#!/bin/sh
# The main job on any machine: AllGather+GEMM on 2 nodes, checked, traced and summed up, then ring attention and the timeline of one
# of its launches. Where the command finds a GPU that it has kernels for, it runs on that, one rank a node (both on one GPU, if
# there is one); else on CPU threads, two ranks a node. Usage: demo.sh BUILD
set -eu
build=$1
show() { echo; echo "\$ $*"; "$@"; }
case $("$build/mkernel" run ag_gemm --nodes 2 --gpus 1 --nic soft --dry-run 2>&1) in
    *"(cuda) would run"*) exec=cuda ranks=1 shape=4096,4096,4096 attention=1,4096,8,4,64 ;;
    *) exec=host ranks=2 shape=1024,512,1024 attention=1,512,4,2,64 ;;
esac
on="--nodes 2 --gpus $ranks --exec $exec --fabric verbs --nic soft --iters 5 --check"
# shellcheck disable=SC2086
show "$build/mkernel" run ag_gemm $on --shape $shape --trace "$build/demo.db"
show "$build/mkernel" trace summary "$build/demo.db"
# shellcheck disable=SC2086
show "$build/mkernel" run ring_attention $on --attention $attention --causal --trace "$build/demo-ring.db"
echo "e e e e f Down Down" >"$build/demo.keys" # to the fifth launch, fitted to the screen
LC_ALL=C.UTF-8 show "$build/mkernel" tui "$build/demo-ring.db" --script "$build/demo.keys" --dump-screen --size 110x26
echo
echo "The traces are $build/demo.db and $build/demo-ring.db: look at them with \`$build/mkernel tui FILE\`, or ask them with"
echo "\`$build/mkernel trace sql FILE\`."
