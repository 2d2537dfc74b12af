#!/bin/sh
# The main job on any machine: AllGather+GEMM on 2 nodes x 2 ranks, checked, traced and summed up, then ring attention and the
# timeline of one of its launches. Usage: demo.sh BUILD
set -eu
build=$1
show() { echo; echo "\$ $*"; "$@"; }
on="--nodes 2 --gpus 2 --exec host --fabric verbs --nic soft --iters 5 --check"
# shellcheck disable=SC2086
show "$build/mkernel" run ag_gemm $on --shape 1024,512,1024 --trace "$build/demo.db"
show "$build/mkernel" trace summary "$build/demo.db"
# shellcheck disable=SC2086
show "$build/mkernel" run ring_attention $on --attention 1,512,4,2,64 --causal --trace "$build/demo-ring.db"
echo "e e e e f Down Down" >"$build/demo.keys" # to the fifth launch, fitted to the screen
LC_ALL=C.UTF-8 show "$build/mkernel" tui "$build/demo-ring.db" --script "$build/demo.keys" --dump-screen --size 110x26
echo
echo "The traces are $build/demo.db and $build/demo-ring.db: look at them with \`$build/mkernel tui FILE\`, or ask them with"
echo "\`$build/mkernel trace sql FILE\`."
