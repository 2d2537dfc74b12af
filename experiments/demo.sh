#!/bin/sh
# The main job on any machine: AllGather+GEMM on 2 nodes x 2 ranks, checked and traced. Usage: demo.sh BUILD
set -eu
build=$1
trace=$build/demo.db
show() { echo; echo "\$ $*"; "$@"; }
show "$build/mkernel" run ag_gemm --nodes 2 --gpus 2 --exec host --fabric verbs --nic soft --shape 1024,512,1024 --iters 5 --check --trace "$trace"
show "$build/mkernel" trace summary "$trace"
echo
echo "The trace is $trace: look at it with \`$build/mkernel tui $trace\` or ask it with \`$build/mkernel trace sql $trace\`."
