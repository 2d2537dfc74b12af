# Virtual machines with soft-RoCE, for tests; to be sourced by bash. A node is a QEMU without KVM (which may be there and hang),
# with the host's root read-only and $vm_work, a folder of this run, at the same paths as here. (no_timer_check: on a busy machine the
# kernel else misses its first ticks and panics. maxcpus=2: for a machine of one CPU QEMU before 8.1 leaves out the guest's memory
# barriers, and its virtio driver and QEMU's main loop then miss each other's word: a node's network stands still for ever.)
#   vm_open WORK BOOT         WORK is made; BOOT holds what image.sh made
#   vm_boot NODE SECONDS ARG  starts node 0, 1, ...; SECONDS until it is killed; ARG: QEMU's netdev
#   vm_listens PATH           waits until a node listens at this Unix socket; another that comes sooner is refused, and has no network
#   vm_ready NODE SECONDS     waits until it takes commands
#   vm_start NODE SECONDS COMMAND    starts a command there; its number is in $vm_job
#   vm_wait JOB               waits for it; returns its status, 124 when it ran too long; its output is in $vm_work/JOB.out
#   vm_run NODE SECONDS COMMAND      both
#   vm_cable NODE on|off      pulls the network cable, or puts it back
#   vm_consoles               what the kernels said
#   vm_close                  ends all nodes
#   vm_missing                status 77, and a word, where this machine cannot run them
vm_jobs=0
declare -A vm_pid vm_listener vm_pipe vm_limit

vm_open() {
    mkdir -p "$1"
    vm_work=$(cd "$1" && pwd)
    vm_image=$2
    cp "${BASH_SOURCE[0]%/*}/agent" "$vm_work/agent"
}

vm_missing() {
    if ! command -v qemu-system-x86_64 >/dev/null; then
        echo "qemu-system-x86_64 is not installed"
    elif ! qemu-system-x86_64 -netdev help 2>/dev/null | grep -qx stream; then
        echo "this QEMU is older than 7.2: it has no -netdev stream"
    else
        return 0
    fi
    return 77
}

# Passes on what a node answers, each to the pipe of its job; when the node ends, its jobs are told.
vm_listen() {
    local job status
    while read -r job status; do
        [ -p "$vm_work/$job.pipe" ] && echo "$status" 1<>"$vm_work/$job.pipe"
    done <"$vm_work/node$1.out"
    for job in "$vm_work/ready$1.pipe" "$vm_work"/"$1"-*.pipe; do
        [ -p "$job" ] && echo "125" 1<>"$job"
    done
}

vm_pipe_open() { # NAME: a pipe that this shell holds open, so that nothing written into it is lost
    mkfifo "$vm_work/$1.pipe"
    exec {vm_fd}<>"$vm_work/$1.pipe"
    vm_pipe[$1]=$vm_fd
}

vm_boot() {
    local node=$1 limit=$2 netdev=$3 path=$vm_work/node$1
    mkfifo "$path.in" "$path.out" "$path.monitor.in" "$path.monitor.out"
    vm_pipe_open "ready$node"
    exec {vm_fd}<>"$path.in"
    vm_pipe[node$node]=$vm_fd
    exec {vm_fd}<>"$path.monitor.in"
    vm_pipe[monitor$node]=$vm_fd
    cat "$path.monitor.out" >"$path.monitor" 2>&1 &
    nice -n 5 timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg -cpu max -smp "${VM_CPUS:-1},maxcpus=2" -m 768 \
        -nodefaults -no-user-config -display none -no-reboot -chardev "pipe,id=monitor,path=$path.monitor" -mon chardev=monitor \
        -kernel "$vm_image/vmlinuz" -initrd "$vm_image/initramfs" \
        -append "console=ttyS0 loglevel=5 panic=-1 random.trust_cpu=on mitigations=off no_timer_check node=$node work=$vm_work" \
        -serial "file:$path.console" -chardev "pipe,id=agent,path=$path" -serial chardev:agent \
        -netdev "$netdev" -device "virtio-net-pci,id=card,netdev=net,host_mtu=4200,mac=52:54:00:77:00:0$((node + 1))" \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev "local,id=work,path=$vm_work,security_model=none" -device virtio-9p-pci,fsdev=work,mount_tag=work \
        >"$path.qemu" 2>&1 </dev/null &
    vm_pid[$node]=$!
    vm_listen "$node" &
    vm_listener[$node]=$!
}

# The file is there before anybody listens; of /proc/net/unix's flags 10000 says that one does.
vm_listens() {
    for _ in $(seq 300); do
        awk -v path="$1" '$4 == "00010000" && $8 == path {found = 1} END {exit !found}' /proc/net/unix && return
        sleep 0.1
    done
    echo "nobody listens at $1"
    return 1
}

vm_start() {
    vm_job=$1-$((++vm_jobs))
    printf '%s\n' "$3" >"$vm_work/$vm_job.sh"
    : >"$vm_work/$vm_job.out"
    vm_pipe_open "$vm_job"
    vm_limit[$vm_job]=$2
    echo "$vm_job $2" >&"${vm_pipe[node$1]}"
}

vm_wait() {
    local status fd=${vm_pipe[$1]}
    read -r -t "$((${vm_limit[$1]} + 15))" -u "$fd" status || status=124
    exec {fd}<&-
    return "$status"
}

# The cable of a node's network card: on or off.
vm_cable() {
    echo "set_link card $2" >&"${vm_pipe[monitor$1]}"
}

vm_ready() {
    vm_limit[ready$1]=$2
    vm_wait "ready$1"
}

vm_run() {
    vm_start "$1" "$2" "$3"
    vm_wait "$vm_job"
}

vm_consoles() {
    local node
    for node in "${!vm_pid[@]}"; do
        echo "---- console of node $node"
        cat "$vm_work/node$node.qemu" "$vm_work/node$node.console" 2>/dev/null | tr -d '\r' | tail -n "${1:-40}"
    done
}

vm_close() {
    local node
    for node in "${!vm_pid[@]}"; do kill "${vm_pid[$node]}" "${vm_listener[$node]}" 2>/dev/null; done
    for node in "${!vm_pid[@]}"; do
        wait "${vm_pid[$node]}" "${vm_listener[$node]}" 2>/dev/null
        rm -f "$vm_work/node$node".{in,out,monitor.in,monitor.out} "$vm_work/ready$node.pipe"
    done
    vm_pid=()
}
