#!/bin/sh
# Reprints the figures of docs/FIGURES.md that need no GPU, with the commands that make them. Usage: figures.sh BUILD
set -u
mkernel=$1/mkernel
echo "machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(date +%F)"
show() { echo; echo "\$ mkernel $*"; "$mkernel" "$@"; }
show bench ring
show bench fabric --nic soft --size 256KB
show bench fabric --fabric efa --nic soft --size 256KB
show bench trace
show bench ag_gemm --exec host --gpus 1 --shape 1024,512,512 --vs blas
show run ag_gemm --exec host --nodes 3 --gpus 2 --nic soft --shape 390,200,328 --iters 50 --check
