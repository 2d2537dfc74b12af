#!/usr/bin/env bash
# The pictures of the documents. Usage: docs/pictures.sh BUILD draw|check
#   draw    all of them, and docs/pictures/SUMS. Two are measured: keep the machine idle
#   check   whether what draws the simulated ones (numbers, screens) is still what it was: status 1 names those that are not
set -eu
cd "$(dirname "$0")/.."
mkernel=$1/mkernel mode=$2
sums=docs/pictures/SUMS
export MKERNEL_TUNING=none LC_ALL=C.UTF-8 MKERNEL_PROGRESS=off
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
stale=

# The numbers or the viewer's screen, in $tmp/NAME.src; then its picture, or whether it is as it was.
made() { # NAME.svg or NAME.png, and the command that draws it into the file that is named behind it
    local sum
    sum=$(sha256sum <"$tmp/$1.src")
    if [ "$mode" = draw ]; then
        printf '%s  %s\n' "${sum%% *}" "$1" >>"$tmp/SUMS"
        case $1 in
        viewer-*) python3 docs/picture.py "docs/pictures/$1" <"$tmp/$1.src" ;;
        *) "${@:2}" "docs/pictures/$1" >/dev/null ;;
        esac
    elif ! grep -qxF "${sum%% *}  $1" "$sums"; then
        stale="$stale $1"
    fi
}

simulated() { # NAME OPTIONS...: the trace $tmp/NAME.db
    "$mkernel" sim "${@:2}" --trace "$tmp/$1.db" >/dev/null
}

operator() { # OP OPTIONS...: one launch on two nodes of two GPUs; rank 0, as all ranks do the same
    simulated "$1" "$1" --cluster 2x2 "${@:2}"
    "$mkernel" trace plot "$tmp/$1.db" --rank 0 --data >"$tmp/op-$1.png.src"
    made "op-$1.png" "$mkernel" trace plot "$tmp/$1.db" --rank 0 --out
}

swept() { # NAME KIND PICTURE OPTIONS...: of docs/experiments/NAME.yaml
    [ -e "$tmp/$1.db" ] || "$mkernel" sweep "docs/experiments/$1.yaml" --out "$tmp/$1.db" >/dev/null 2>&1
    "$mkernel" results "$tmp/$1.db" plot "$2" --data "${@:4}" >"$tmp/$3.src"
    made "$3" "$mkernel" results "$tmp/$1.db" plot "$2" "${@:4}"
}

screen() { # NAME SIZE KEYS FILE...
    printf '%s\n' "$3" >"$tmp/keys"
    "$mkernel" tui "${@:4}" --script "$tmp/keys" --dump-screen=attributes --size "$2" >"$tmp/$1.src"
    made "$1"
}

operator ag_gemm --shape 16384,4096,8192
operator gemm_rs --shape 8192,8192,4096
operator gemm_ar --shape 8192,8192,8192
operator ring_attention --attention 1,32768,16,16,128 --causal
operator moe_dispatch_gemm --moe 2048,7168,2048,32,8
operator moe_ffn --moe 2048,7168,2048,32,8
swept role-split time experiment-role-split.png --x nodes
swept mkernel-paper speed experiment-mkernel-paper.png
swept mkernel-paper roofline experiment-roofline.png --only op=ag_gemm:gemm_rs:gemm_ar
validate=("$mkernel" sim --validate tests/golden/measured_2xH200_held_out.csv)
"${validate[@]}" --csv "$tmp/sim-validate.png.src" >/dev/null
made sim-validate.png "${validate[@]}" --plot
simulated overview ag_gemm --cluster 2x2 --shape 16384,4096,8192 --launches 3
simulated other ag_gemm --cluster 2x2 --shape 16384,4096,8192 --launches 3 --roles compute=116,intra_comm=12,inter_send=4
simulated eight ag_gemm --cluster 1x8 --shape 8192,1024,8192 --launches 4
screen viewer-overview.svg 140x40 'e f' "$tmp/overview.db"
screen viewer-why.svg 140x40 'w Enter' "$tmp/overview.db"
screen viewer-compare.svg 140x40 'e f 9' "$tmp/overview.db" "$tmp/other.db"
screen viewer-8gpu.svg 140x40 'e e e f' "$tmp/eight.db"

if [ "$mode" = check ]; then
    [ -z "$stale" ] || { echo "older than what draws them:$stale; \`make pictures\` draws them anew" >&2; exit 1; }
    exit 0
fi

# Measured: what the host does to 96 jobs, and a job of which rank 2 has been stopped.
"$mkernel" sweep docs/experiments/chunks.yaml --out "$tmp/chunks.db" >/dev/null 2>&1
"$mkernel" results "$tmp/chunks.db" plot time docs/pictures/experiment-chunks.png >/dev/null
"$mkernel" run ag_gemm --nodes 2 --gpus 2 --exec host --nic soft --shape 2048,768,1536 --iters 100000 --timeout 8 >/dev/null 2>&1 &
job=$!
sleep 2
victim=$(tr ' ' '\n' <"/proc/$job/task/$job/children" | sed -n 3p)
kill -STOP "$victim"
sleep 2
"$mkernel" tui --attach "$job" --dump-screen=attributes --size 140x30 >"$tmp/live" || true
kill -KILL "$victim"
wait "$job" || true
python3 docs/picture.py docs/pictures/viewer-live.svg <"$tmp/live"
mv "$tmp/SUMS" "$sums"
