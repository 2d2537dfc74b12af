#!/bin/bash
# One node with soft-RoCE: `mkernel info` names the command that makes the device, and both nodes of a job share it, at both MTUs.
# Usage: test_rxe_one.sh [CHECK...], in the repository's root, after `make`. BUILD is the build folder. NATIVE=1 takes this machine's
# own device NIC (rxe0) in place of a virtual machine's.
set -u
. tests/rxe/check.sh
. tests/rxe/vm.sh
build=$(cd "${BUILD:-build}" && pwd)
mkernel=$build/mkernel
native=${NATIVE:-}
nic=rxe0
[ -z "$native" ] || nic=${NIC:-rxe0}
checks="boot info_names_the_command control_write_bw ag_gemm_on_one_device puts_on_one_device mtu_1024"
[ -z "$native" ] || checks="control_write_bw ag_gemm_on_one_device puts_on_one_device"

reason=
if [ -z "$native" ]; then
    reason=$(vm_missing) && { reason=$(tests/rxe/image.sh "$build/rxe") || reason=${reason:-the image of the virtual machines could not be made}; }
elif [ ! -e "/sys/class/infiniband/$nic" ]; then
    reason="this machine has no device $nic: docs/SOFT_ROCE.md says how to make one"
fi
command -v ib_write_bw >/dev/null || reason="perftest is not installed"
[ -z "$reason" ] || {
    check_skip_all "$reason" $checks
    exit 0
}

rm -rf "$build/rxe/one"
vm_open "$build/rxe/one" "$build/rxe"
trap vm_close EXIT
trap 'exit 1' INT TERM

# SECONDS COMMAND: on the node, or here; shows what it said.
node() {
    local status
    if [ -n "$native" ]; then
        timeout -k 2 "$1" bash -c "$2"
        return
    fi
    vm_run 0 "$1" "$2"
    status=$?
    cat "$vm_work/$vm_job.out"
    return "$status"
}

check_boot() {
    vm_boot 0 "${LIMIT:-560}" hubport,id=net,hubid=0
    vm_ready 0 100 && node 20 "rdma link show rxe0/1 | grep ACTIVE"
}

# What it advises is done as it stands there.
check_info_names_the_command() {
    node 60 "rdma link delete rxe0
        advice=\$($mkernel info | sed -n 's/^ *\(rdma link add .*\)#.*/\1/p')
        echo \"advice: \$advice\"
        \$advice && $mkernel info | grep -x 'NIC  *rxe0: active, rdma_rxe, Ethernet, MTU 4096,.* on eth0'"
}

# The setup itself works, by other people's program, with a timeout that a slow machine's acknowledgements keep.
check_control_write_bw() {
    local write_bw="ib_write_bw -d $nic -s 65536 -n 100 -u 18 -F --output=bandwidth"
    node 60 "$write_bw & for i in \$(seq 40); do $write_bw localhost 2>/dev/null && break; sleep 0.25; done; wait \$!"
}

check_ag_gemm_on_one_device() {
    node 90 "$mkernel run ag_gemm --nodes 2 --gpus 1 --exec host --fabric verbs --nic $nic --shape 512,64,128 --iters 3 --check --timeout 60"
}

check_puts_on_one_device() {
    node 90 "$mkernel bench fabric --nic $nic --max 1MB --iters 20 --timeout 60"
}

# Ethernet's usual MTU makes RoCE's 1024.
check_mtu_1024() {
    node 20 "ip link set eth0 mtu 1500; ibv_devinfo -d rxe0 | grep 'active_mtu:.*1024'" && check_ag_gemm_on_one_device
}

for name in ${*:-$checks}; do
    check "$name" || [ "$name" != boot ] || { vm_consoles; exit 1; }
done
[ "$check_failed" = 0 ] || vm_consoles
check_end
