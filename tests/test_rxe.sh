#!/bin/bash
# Two nodes with soft-RoCE, two ranks on each, run the operators over the kernel's rdma_rxe: they are right at both MTUs and on a bad
# link, their puts are as fast as ib_write_bw's, and a link that fails is survived, for as long as was asked, or named.
# Usage: test_rxe.sh [CHECK...], in the repository's root, after `make`. BUILD is the build folder. Needs QEMU, no root. The check `boot` comes first.
set -u
. tests/rxe/check.sh
. tests/rxe/vm.sh
build=$(cd "${BUILD:-build}" && pwd)
mkernel=$build/mkernel
life=${LIMIT:-560} # seconds, of the machines: nothing outlives a test that is killed
emulated="ag_gemm_wgmma gemm_ar_mma gemm_rs_wgmma ring_attention_mma moe_ffn_wgmma moe_ffn_mma" # GEMMs, attention and the layer, on either engine; test_hopper_ops has every pair between nodes
operators="ag_gemm gemm_ar gemm_rs moe_dispatch_gemm moe_ffn ring_attention"
checks="boot control_write_bw $(printf 'operator_%s ' $operators) $(printf 'emulated_%s ' $emulated) puts_reach_write_bw traces_merge mtu_1024 lossy_link receiver_down_and_up sender_down_and_up link_down_and_up cable_out_and_in retries_as_asked emulated_link_stays_down link_stays_down"

[ -z "${NATIVE:-}" ] || {
    check_skip_all "NATIVE=1: this machine's own device is tested by test_rxe_one.sh; two nodes take virtual machines" $checks
    exit 0
}
reason=$(vm_missing) && { reason=$(tests/rxe/image.sh "$build/rxe") || reason=${reason:-the image of the virtual machines could not be made}; }
command -v ib_write_bw >/dev/null || reason="perftest is not installed"
[ -z "$reason" ] || {
    check_skip_all "$reason" $checks
    exit 0
}

rm -rf "$build/rxe/pair"
vm_open "$build/rxe/pair" "$build/rxe"
trap vm_close EXIT
trap 'trap "" INT TERM; check_stopped; vm_consoles >&"$check_out"; exit 1' INT TERM

# Runs a command on each node at once; status 0 where both end in 0. SECONDS COMMAND0 COMMAND1
both() {
    local status0 status1 job0
    vm_start 0 "$1" "$2"
    job0=$vm_job
    vm_start 1 "$1" "$3"
    job1=$vm_job
    vm_wait "$job0"
    status0=$?
    vm_wait "$job1"
    status1=$?
    echo "-- node 0: status $status0"
    cat "$vm_work/$job0.out"
    echo "-- node 1: status $status1"
    cat "$vm_work/$job1.out"
    [ "$status0" = 0 ] && [ "$status1" = 0 ]
}

# What a node runs for its two ranks, as torchrun would start them: NODE COMMAND. Its status is the worse of the two.
port=29500
ranks_of() {
    cat <<END
export MASTER_ADDR=10.77.0.1 MASTER_PORT=$port WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MKERNEL_TOKEN=rxe OPENBLAS_NUM_THREADS=1
for l in 0 1; do RANK=\$(($1 * 2 + l)) LOCAL_RANK=\$l GROUP_RANK=$1 $2 & pid[l]=\$!; done
wait \${pid[0]}; first=\$?
wait \${pid[1]}; second=\$?
echo "status \$first \$second"
[ \$first -gt \$second ] && exit \$first || exit \$second
END
}

# COMMAND SECONDS: on all four ranks.
ranks() {
    port=$((port + 10))
    both "$2" "$(ranks_of 0 "$1")" "$(ranks_of 1 "$1")"
}

# A client that comes before its server tries again.
patience='retry() { for i in $(seq 40); do "$@" && return; sleep 0.25; done 2>/dev/null; "$@"; }'
run="$mkernel run ag_gemm --nodes 2 --gpus 2 --exec host --fabric verbs --nic rxe0 --shape 512,16,128 --iters 3 --check --timeout 60"

# Both nodes, until they reach each other; where they do not, what they said is shown and they are started once more.
check_boot() {
    local wire=$vm_work/wire refused="exec 3<>/dev/tcp/10.77.0.1/1" # nobody listens at port 1, which only a node that is reached can say
    for _ in 1 2 3; do
        vm_boot 0 $life "stream,id=net,server=on,addr.type=unix,addr.path=$wire"
        vm_listens "$wire" && vm_boot 1 $life "stream,id=net,server=off,addr.type=unix,addr.path=$wire" && vm_ready 0 200 && vm_ready 1 100 &&
            both 20 "ip -br addr show eth0; rdma link show rxe0/1 | grep ACTIVE" "rdma link show rxe0/1 | grep ACTIVE; ($refused) 2>&1 | grep 'Connection refused'" && return
        vm_consoles
        vm_close
        rm -f "$wire"
    done
    return 1
}

# Its own timeout of 67 ms is shorter than an acknowledgement takes here, and rxe of Linux 6.1 breaks a QP that resends early.
write_bw="ib_write_bw -d rxe0 -s 262144 -n 64 -u 18 -F --output=bandwidth"

# The setup itself works, by other people's program.
check_control_write_bw() {
    both 60 "$write_bw" "$patience; retry $write_bw 10.77.0.1" && both 20 "ibv_devinfo -d rxe0 | grep 'active_mtu:.*4096'" "ibv_devinfo -d rxe0 | grep 'active_mtu:.*4096'"
}

# An operator, on all four ranks; skipped where this build does not run it at all, which is asked of softnic on this host.
operator() {
    local shape="--shape 512,64,32" # products are small: emulated cores compute them
    case $1 in
    ag_gemm) shape="--shape 512,16,128" ;;
    moe_*) shape="--moe 32,64,32,8,2" ;;
    ring_*) shape="--attention 1,256,2,1,64" ;;
    esac
    if ! timeout 60 "$mkernel" run "$1" --nodes 2 --gpus 2 --exec host --nic soft $shape --iters 1 --check >"$vm_work/soft.log" 2>&1; then
        echo "this build does not run $1 over softnic either: $(tail -n 1 "$vm_work/soft.log")"
        return 77
    fi
    ranks "$mkernel run $1 --nodes 2 --gpus 2 --exec host --fabric verbs --nic rxe0 $shape --iters 3 --check --timeout 60" 90
}
for op in $operators; do eval "check_operator_$op() { operator $op; }"; done

# What a node runs for one rank, whose emulated GPU is a node of its own and reached by no NIC, as a GeForce card is: NODE COMMAND
single_of() {
    echo "export MASTER_ADDR=10.77.0.1 MASTER_PORT=$port WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MKERNEL_TOKEN=rxe OPENBLAS_NUM_THREADS=1 MKERNEL_P2P=off
RANK=$1 LOCAL_RANK=0 GROUP_RANK=$1 $2"
}

# A GPU's kernels, emulated, on both nodes: OP_ENGINE. All their puts are staged. Of few blocks, and shapes of a tile or two, since emulated cores emulate them.
emulated() {
    local op=${1%_*} shape="--shape 34,72,72" roles="--roles compute=2,inter_send=1"
    case $op in
    gemm_ar) roles="--roles compute=2,intra_comm=2,inter_send=1" ;;
    moe_ffn) shape="--moe 8,64,32,2,1" roles="--roles compute=2,intra_comm=1,inter_send=1,inter_reduce=1" ;;
    ring_attention) shape="--attention 1,66,1,1,64" ;;
    esac
    port=$((port + 10))
    local line="$mkernel run $op --engine ${1##*_} --nodes 2 --gpus 1 --exec emulated --fabric verbs --nic rxe0 $shape $roles --warmup 0 --iters 2 --check --timeout 60"
    both 90 "$(single_of 0 "$line")" "$(single_of 1 "$line")" || return
    grep -q "executor emulated, verbs over rxe0" "$vm_work/0-$((vm_jobs - 1)).out" && grep -q "verdict   right" "$vm_work/0-$((vm_jobs - 1)).out"
}
for op in $emulated; do eval "check_emulated_$op() { emulated $op; }"; done

# Puts of 256 KB against ib_write_bw's writes, in turn, by the best of three of each, or of more where other work on this machine makes
# three say too little. Both sides get the same chances. A control that itself varies without end says that nothing can be compared.
check_puts_reach_write_bw() {
    local ours="$mkernel bench fabric --nic rxe0 --port 18600 --timeout 60" test="--test bw --size 262144 --iters 64" results=$vm_work/puts
    : >"$results"
    for _ in 1 2 3 4 5; do
        both 150 "for i in 1 2 3; do $write_bw >/dev/null; $ours --server; done" \
            "$patience
            for i in 1 2 3; do
                retry $write_bw 10.77.0.1 | sed -n 's/^ *\([0-9.]*\) *$/write \1/p'
                retry $ours --client 10.77.0.1 $test | awk '\$1 == 262144 {print \"put\", \$4}'
            done" || return
        cat "$vm_work/$vm_job.out" >>"$results"
        awk '$2 > best[$1] {best[$1] = $2} {n[$1]++} END {
            if (n["put"] % 3 || n["put"] != n["write"]) exit 1
            printf "figure: puts of 256 KB %.1f MB/s, ib_write_bw %.1f MB/s (best of %d, in turn): ratio %.2f\n",
                best["put"], best["write"], n["put"], best["put"] / best["write"]
            exit !(best["put"] >= 0.9 * best["write"])}' "$results" && return
    done
    awk '$1 == "write" && $2 > most {most = $2} $1 == "write" && (!least || $2 < least) {least = $2} END {
        printf "ib_write_bw alone reached %.1f to %.1f MB/s: this machine is too busy to compare with it\n", least, most
        exit most > 1.5 * least ? 77 : 1}' "$results"
}

# The ranks of both nodes on one clock: the two ranks of a node, whose clock is the same, got the same line, and no message arrived
# before it was posted, each as far as the residuals tell.
check_traces_merge() {
    local trace=$vm_work/trace.db wrong
    ranks "$run --trace /dev/shm/trace.db" 90 && vm_run 0 20 "cp /dev/shm/trace.db $trace" || return
    "$mkernel" trace summary "$trace" | sed -n 's/^worst clock/figure: &/p'
    "$mkernel" trace sql "$trace" "SELECT * FROM clock WHERE domain = 'host'"
    wrong=$("$mkernel" trace sql "$trace" "
        SELECT 'ranks 2 and 3 differ by ' || (b.offset_ns - a.offset_ns) || ' ns' FROM clock a JOIN clock b ON a.domain = 'host' AND b.domain = 'host'
            WHERE a.rank = 2 AND b.rank = 3 AND abs(b.offset_ns - a.offset_ns) > a.residual_ns + b.residual_ns
        UNION ALL SELECT 'rank ' || rank || ' has no clock' FROM clock WHERE domain = 'host' AND rank > 1 AND (used = 0 OR residual_ns <= 0)
        UNION ALL SELECT 'message ' || m.id || ' arrived ' || (m.posted - m.arrived) || ' ns before it was posted' FROM message m
            JOIN clock a ON a.rank = m.rank AND a.domain = 'host' JOIN clock b ON b.rank = m.peer AND b.domain = 'host'
            WHERE m.arrived < m.posted - a.residual_ns - b.residual_ns
        UNION ALL SELECT 'no message between the nodes was recorded' WHERE (SELECT count(*) FROM message WHERE posted AND rank / 2 <> peer / 2) = 0" |
        tail -n +2) && [ -z "$wrong" ] || { echo "$wrong"; return 1; }
}

# Ethernet's usual MTU makes RoCE's 1024.
check_mtu_1024() {
    local small="ip link set eth0 mtu 1500; ibv_devinfo -d rxe0 | grep 'active_mtu:.*1024'"
    both 20 "$small" "$small" || return
    ranks "$run" 90
    local status=$?
    both 20 "ip link set eth0 mtu 4200" "ip link set eth0 mtu 4200" && return $status
}

# 1 % of the packets of either way are lost, all are 5 ms late.
check_lossy_link() {
    local status bad="tc qdisc add dev eth0 root netem loss 1% delay 5ms"
    both 20 "$bad" "$bad" || return
    ranks "${run/512,16,128/512,16,512}" 150
    status=$?
    both 20 "tc -s qdisc show dev eth0; tc qdisc del dev eth0 root" "tc -s qdisc show dev eth0; tc qdisc del dev eth0 root" || return
    grep -h 'dropped [1-9]' "$vm_work/0-$((vm_jobs - 1)).out" "$vm_work/1-$vm_jobs.out" || { echo "nothing was lost: this proved nothing"; return 1; }
    return "$status"
}

# What a failing link is measured by: FLOWING waits until packets come, FLOWED until they come again; both until they are stopped.
packets='packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }; more() { local begin=$(packets); until [ $(($(packets) - begin)) -ge $1 ]; do sleep 0.02; done; }'
flowing="$packets; more 60"
flowed="sleep 0.5; $packets; more 50"
# A busy machine takes seconds from a fault to its end, and retries of 0.5 s have then run out: under operators they go on for 7.5 s.
patient="--verbs timeout=18"
listens="until ss -Hltn | grep -q :18600; do sleep 0.1; done"

# The link of a node goes down for a second under puts from node 0 to node 1, whose bytes are checked at the end. NODE
puts_with_link_down() {
    local fault server client status
    vm_start 1 90 "$mkernel bench fabric --server --nic rxe0 --port 18600 --timeout 60"
    server=$vm_job
    vm_run 1 20 "$listens" || { echo "no server"; return 1; }
    vm_start "$1" 90 "$flowing; ip link set eth0 down; sleep 1; ip link set eth0 up; $flowed"
    fault=$vm_job
    vm_start 0 90 "$mkernel bench fabric --client 10.77.0.2 --nic rxe0 --port 18600 --timeout 60 --test bw --size 262144 --iters 400"
    client=$vm_job
    vm_wait "$client"
    status=$?
    vm_wait "$server"
    echo "-- client: status $status, server: $?"
    cat "$vm_work/$client.out" "$vm_work/$server.out"
    vm_wait "$fault" || { echo "the link was not down while puts were under way"; return 1; }
    return "$status"
}

# A receiver whose link is down only falls silent.
check_receiver_down_and_up() {
    puts_with_link_down 1
}

# A sender's driver (Linux 6.1's rxe) fails its QPs, or stops them without a word: both ends recover them.
check_sender_down_and_up() {
    puts_with_link_down 0
}

# The link of node 1 goes down for two seconds under all ranks. Its own are held up first until all has come that they wait for, so that what they
# do next is to send; a burst of launches does not wait between them. That the device failed their QPs and both ends recovered them shows in the packet numbers, which begin a quarter of all further on.
# Where none had to be recovered (all had been sent when the link went down) the run was right and nothing has been shown: then once more.
check_link_down_and_up() {
    local job status
    for _ in 1 2 3; do
        vm_start 1 90 "$packets; more 400
            numbers() { rdma res show qp | sed -n 's/.* lqpn \([0-9]*\) .*type RC .* rq-psn \([0-9]*\) .*/\1 \2/p' | sort; }
            busybox killall -STOP mkernel && sleep 1
            numbers >/dev/shm/before
            ip link set eth0 down
            busybox killall -CONT mkernel && sleep 2
            ip link set eth0 up
            $flowed
            numbers | join /dev/shm/before - | awk '{n += (\$3 - \$2 + 16777216) % 16777216 > 2097152} END {print n + 0, \"QPs of\", NR, \"were recovered\"; exit !n}'"
        job=$vm_job
        ranks "${run/512,16,128 --iters 3/512,16,512 --iters 40 --burst 40} $patient" 150
        status=$?
        vm_wait "$job"
        echo "-- the link: status $?"
        cat "$vm_work/$job.out"
        [ "$status" = 0 ] || return "$status"
        grep -q '^[1-9].* were recovered$' "$vm_work/$job.out" && return
    done
    return 1
}

# The cable of one node is out for a second while all ranks work; both of its ways are cut.
check_cable_out_and_in() {
    local job jobs status bad=0
    vm_start 1 90 "$flowing; echo now"
    job=$vm_job
    port=$((port + 10))
    local long="$mkernel run ag_gemm --nodes 2 --gpus 2 --exec host --fabric verbs --nic rxe0 --shape 512,16,128 --iters 20 --check --timeout 60 $patient"
    vm_start 0 150 "$(ranks_of 0 "$long")"
    jobs=$vm_job
    vm_start 1 150 "$(ranks_of 1 "$long")"
    jobs="$jobs $vm_job"
    vm_wait "$job" || { echo "no packets came"; bad=1; }
    vm_cable 1 off
    vm_run 1 20 "sleep 0.5; ip -br link show eth0; cat /sys/class/net/eth0/carrier" && grep -qx 0 "$vm_work/$vm_job.out" || { echo "the cable is not out"; bad=1; }
    vm_cable 1 on
    vm_run 1 30 "$flowed" || { echo "the cable was not out while ranks worked"; bad=1; }
    for job in $jobs; do
        vm_wait "$job"
        status=$?
        echo "-- node ${job%-*}: status $status"
        cat "$vm_work/$job.out"
        [ "$status" = 0 ] || bad=1
    done
    return "$bad"
}

# The peer falls silent under puts; they fail after as many retries as --verbs said, each after the timeout that it said. (7 would be for
# ever: rxe does not count them then.)
check_retries_as_asked() {
    local retry job client begin ms=() status
    for retry in 1 6; do
        vm_start 1 60 "$mkernel bench fabric --server --nic rxe0 --port 18600 --timeout 20"
        job=$vm_job
        vm_run 1 20 "$listens" || { echo "no server"; return 1; }
        vm_start 0 60 "$mkernel bench fabric --client 10.77.0.2 --nic rxe0 --port 18600 --timeout 20 --verbs timeout=17,retry=$retry --test bw --size 262144 --iters 100000"
        client=$vm_job
        vm_run 1 60 "$flowing" || { echo "no packets came"; return 1; }
        vm_cable 1 off
        begin=${EPOCHREALTIME/./}
        vm_wait "$client"
        status=$?
        ms+=($(((${EPOCHREALTIME/./} - begin) / 1000)))
        vm_cable 1 on
        cat "$vm_work/$client.out"
        [ "$status" != 0 ] && grep -q "a put failed: transport retry counter exceeded" "$vm_work/$client.out" || { echo "status $status, not for the retries"; return 1; }
        vm_wait "$job"
    done
    echo "figure: the peer silent, puts fail after ${ms[0]} ms with timeout=17,retry=1 and ${ms[1]} ms with retry=6 (537 ms each)"
    [ "${ms[0]}" -ge 900 ] && [ "${ms[1]}" -ge 3200 ] && [ $((ms[0] + 1500)) -lt "${ms[1]}" ]
}

# The same under kernels, which are emulated and staged: each rank says in one sentence that the other is lost, and the link comes back.
check_emulated_link_stays_down() {
    local node job jobs= bad=0
    port=$((port + 10))
    local long="$mkernel run ag_gemm --engine mma --nodes 2 --gpus 1 --exec emulated --fabric verbs --nic rxe0 --shape 34,72,72 --iters 100000 --timeout 5"
    vm_start 1 90 "$flowing; ip link set eth0 down"
    job=$vm_job
    for node in 0 1; do
        vm_start "$node" 90 "$(single_of "$node" "$long")"
        jobs="$jobs $vm_job"
    done
    vm_wait "$job" || { echo "no packets came"; bad=1; }
    for job in $jobs; do
        vm_wait "$job"
        [ "$?" = 3 ] || { echo "node ${job%-*}: not status 3"; bad=1; }
        cat "$vm_work/$job.out"
        local other=$((1 - ${job%-*}))
        [ "$(grep -c '^mkernel run ag_gemm: ' "$vm_work/$job.out")" = 1 ] || { echo "node ${job%-*}: not one sentence"; bad=1; }
        grep -qE "^mkernel run ag_gemm: .*(rank $other is lost|could not reach rank $other|rank $other's)" "$vm_work/$job.out" || { echo "node ${job%-*}: a sentence that does not name the other rank"; bad=1; }
    done
    vm_run 1 20 "ip link set eth0 up; until ibv_devinfo -d rxe0 | grep -q PORT_ACTIVE; do sleep 0.1; done" || bad=1
    return "$bad"
}

# A link that stays down ends the job on every rank, with status 3 and one sentence; last, since it leaves node 1 without a link.
check_link_stays_down() {
    local node job jobs= bad=0
    port=$((port + 10))
    local long="$mkernel run ag_gemm --nodes 2 --gpus 2 --exec host --fabric verbs --nic rxe0 --shape 512,64,128 --iters 100000 --timeout 5"
    vm_start 1 90 "$flowing; ip link set eth0 down"
    job=$vm_job
    for node in 0 1; do
        vm_start "$node" 90 "$(ranks_of "$node" "$long")"
        jobs="$jobs $vm_job"
    done
    vm_wait "$job" || { echo "no packets came"; bad=1; }
    for job in $jobs; do
        vm_wait "$job"
        echo "-- node ${job%-*}: status $?"
        cat "$vm_work/$job.out"
    done
    for job in $jobs; do
        local others="[23]"
        [ "${job%-*}" = 0 ] || others="[01]"
        [ "$(grep -c '^mkernel run ag_gemm: ' "$vm_work/$job.out")" = 2 ] || { echo "node ${job%-*}: not one sentence from each rank"; bad=1; }
        [ "$(grep -cE "^mkernel run ag_gemm: .*(rank $others is lost|could not reach rank $others|rank $others's)" "$vm_work/$job.out")" = 2 ] || { echo "node ${job%-*}: a sentence that does not name the other node"; bad=1; }
        grep -q '^status 3 3$' "$vm_work/$job.out" || { echo "node ${job%-*}: not status 3 on both ranks"; bad=1; }
    done
    return "$bad"
}

for name in ${*:-$checks}; do
    check "$name" || [ "$name" != boot ] || { vm_consoles; exit 1; }
done
[ "$check_failed" = 0 ] || vm_consoles
check_end
