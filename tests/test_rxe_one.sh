#!/bin/bash
# One node with soft-RoCE: `mkernel info` names the commands that make the device and its limits, and both nodes of a job share it, at
# both MTUs and without a network.
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
checks="boot info_names_the_commands info_names_rights control_write_bw ag_gemm_on_one_device limits_by_query mtu_1024 without_a_network"
[ -z "$native" ] || checks="control_write_bw ag_gemm_on_one_device limits_by_query"

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
trap 'trap "" INT TERM; check_stopped; vm_consoles >&"$check_out"; exit 1' INT TERM

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
    vm_ready 0 200 && node 20 "rdma link show rxe0/1 | grep ACTIVE"
}

# A laptop after its start: the module is on its disk and no more. What is advised is done as it stands there, line by line. The machine's root
# is the host's, which has other modules, so the laptop gets a root of its own, with the host's folders and this kernel's modules.
check_info_names_the_commands() {
    node 60 "root=/dev/shm/laptop
        mkdir -p \$root/lib /dev/shm/bin && ln -s /usr/lib/* \$root/lib/ && rm -f \$root/lib/modules && mv /dev/shm/modules \$root/lib/modules || exit
        ln -s \$(command -v busybox) /dev/shm/bin/modprobe # kmod may not be installed
        for entry in /*; do
            case \$entry in /lib) continue ;; esac
            if [ -L \$entry ]; then cp -P \$entry \$root/; elif [ -d \$entry ]; then mkdir \$root\$entry && mount --rbind \$entry \$root\$entry; fi
        done
        busybox rmmod rdma_rxe && busybox rmmod crc32_generic || exit
        laptop() { chroot \$root /usr/bin/env PATH=/dev/shm/bin:\$PATH \"\$@\"; }
        laptop $mkernel info >/dev/shm/info
        grep -x 'soft-RoCE module rdma_rxe on disk, not loaded, 0 rxe devices;.*' /dev/shm/info || exit
        sed -n '/^would help/,\$ s/^  \([^(#]*\).*/\1/p' /dev/shm/info | tee /dev/shm/advice
        [ \$(grep -cx 'modprobe crc32_generic; modprobe rdma_rxe *\|rdma link add rxe0 type rxe netdev eth0 *' /dev/shm/advice) = 2 ] || exit
        laptop bash -e /dev/shm/advice || exit
        $mkernel info | tee /dev/shm/info | grep -x 'soft-RoCE module rdma_rxe loaded, 1 rxe device; .*' &&
        grep -x 'NIC  *rxe0: active, rdma_rxe, Ethernet, MTU 4096,.* on eth0,.*' /dev/shm/info"
}

# The setup itself works, by other people's program, with a timeout that a slow machine's acknowledgements keep.
check_control_write_bw() {
    local write_bw="ib_write_bw -d $nic -s 65536 -n 100 -u 18 -F --output=bandwidth"
    node 60 "$write_bw & for i in \$(seq 40); do $write_bw localhost 2>/dev/null && break; sleep 0.25; done; wait \$!"
}

# As docs/SOFT_ROCE.md has it, with a shape for a slow machine; the device has counted the packets.
check_ag_gemm_on_one_device() {
    node 90 "packets() { cat /sys/class/infiniband/$nic/ports/1/hw_counters/sent_pkts; }
        begin=\$(packets)
        $mkernel run ag_gemm --nodes 2 --gpus 1 --nic $nic --shape 256,16,128 --iters 3 --check --timeout 60 || exit
        echo \"\$((\$(packets) - begin)) packets were sent\"
        [ \$((\$(packets) - begin)) -ge 16 ]"
}

# Where a user may not open the device, or lock memory, the commands that help; the run says the same in its own words.
check_info_names_rights() {
    node 60 "as_nobody='setpriv --reuid 65534 --regid 65534 --clear-groups' file=/dev/infiniband/uverbs0
        ulimit -l 1024
        chgrp 65534 \$file && chmod 660 \$file && \$as_nobody $mkernel info | grep 'ulimit -l unlimited' || exit
        chgrp tty \$file && \$as_nobody $mkernel info | grep -F \"rxe0: no right to open \$file: \\\`usermod -aG tty nobody\\\`\" || exit
        chgrp root \$file && \$as_nobody $mkernel info | grep -F \"chmod 666 \$file\" || exit
        chmod 666 \$file
        \$as_nobody $mkernel bench fabric --nic $nic --size 4MB --iters 1 --timeout 10 2>&1 | grep 'ulimit -l unlimited'"
}

# What `mkernel info` and the fabric say of the device is what ibv_devinfo says; and a put longer than a message may be arrives, cut.
check_limits_by_query() {
    local out=$vm_work/limits field
    node 60 "ibv_devinfo -v -d $nic | sed 's/^/device /'; $mkernel info | sed 's/^/info /'
        $mkernel bench fabric --nic $nic --test bw --size 12MB --iters 2 --timeout 60" | tee "$out"
    of_device() { sed -n "s/^device[[:space:]]*$1:[[:space:]]*//p" "$out" | head -n 1; }
    local index=$(sed -n 's/^device.*GID\[ *\([0-9]*\)\]:.*::ffff:.*RoCE v2.*/\1/p' "$out" | head -n 1)
    local longest=$(($(of_device max_msg_sz)))
    for field in "GID $index (RoCE v2 ::ffff:" "queues of $(of_device max_qp_wr)," "$(of_device max_sge) SGE" "messages to $((longest >> 20)) MiB"; do
        grep "^info NIC  *$nic:" "$out" | grep -qF "$field" || { echo "mkernel info does not say: $field"; return 1; }
    done
    for field in "GID $index)" "writes to $((longest >> 10)) KiB"; do
        grep "^$nic port" "$out" | grep -qF "$field" || { echo "the fabric does not say: $field"; return 1; }
    done
    [ "$longest" -lt 12582912 ] || { echo "12 MB are one message here: this proved nothing of cutting"; return 1; }
    ! grep "^$nic port" "$out" | grep "no inline data" && grep -q '^ 12582912 ' "$out"
}

# Ethernet's usual MTU makes RoCE's 1024.
check_mtu_1024() {
    node 20 "ip link set eth0 mtu 1500; ibv_devinfo -d rxe0 | grep 'active_mtu:.*1024'" && check_ag_gemm_on_one_device
}

# A laptop that is on no network has `lo`.
check_without_a_network() {
    node 20 "ip link set eth0 down; rdma link delete rxe0; rdma link add rxe0 type rxe netdev lo && rdma link show rxe0/1 | grep ACTIVE" &&
        check_ag_gemm_on_one_device
}

for name in ${*:-$checks}; do
    check "$name" || [ "$name" != boot ] || { vm_consoles; exit 1; }
done
[ "$check_failed" = 0 ] || vm_consoles
check_end
