#!/bin/bash
# Under real launchers `mkernel run`, `bench`, `sweep` and a Python program with numpy are one job of all ranks that the launcher started: under Open
# MPI's mpirun, torchrun, ssh to a server of this test's own, and Slurm: two nodes of this machine, with daemons, keys, ports and files of this test's own.
# Usage: test_launchers.sh [CHECK...], in the repository's root, after `make`. BUILD is the build folder. What setup.sh unpacked instead of
# installing it lies in BUILD/launchers.
set -u
. tests/rxe/check.sh
build=$(cd "${BUILD:-build}" && pwd)
mkernel=$build/mkernel
unpacked=$build/launchers
PATH=$PATH:/usr/sbin:/sbin:$unpacked/usr/bin:$unpacked/usr/sbin
launchers="mpirun ssh srun"
checks=torchrun_all
for launcher in $launchers; do checks="$checks $(printf "${launcher}_%s " run bench sweep python)"; done
checks="$checks ssh_interrupted srun_in_a_batch srun_mpirun srun_refused srun_array srun_cancelled srun_spread"

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT MKERNEL_HOST MKERNEL_PORT ${!SLURM_*} ${!OMPI_*} ${!PMI*}
export MKERNEL_TUNING=none MKERNEL_PROGRESS=off MKERNEL_TOKEN=of-the-launchers OPENBLAS_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers have no other user
work=$(mktemp -d "${TMPDIR:-/tmp}/mkernel-launchers-XXXXXX") || exit 1
vm_work=$work # where check writes
servers=

finish() {
    trap '' INT TERM
    [ -z "${SLURM_CONF:-}" ] || { timeout 5 scancel -u "$(id -un)"; until_true 5 idle; } 2>/dev/null
    [ -z "$servers" ] || { kill $servers; wait $servers; } 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'trap "" INT TERM; check_stopped; exit 1' INT TERM

# COMMAND...: beside the test, and ended with it, also where the test is killed. Its pid is in $server.
serve() {
    setpriv --pdeathsig TERM "$@" >"$work/${1##*/}.log" 2>&1 &
    server=$!
    servers="$servers $server"
}

# A port of this machine at which nobody listens.
free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# SECONDS COMMAND...: until it is true.
until_true() {
    local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    shift
    until "$@" 2>/dev/null; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# MODULE PYTHON...: the first that has it.
python_with() {
    local module=$1 p
    shift
    for p; do
        "$p" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" 2>/dev/null && echo "$p" && return
    done
    return 1
}
numpy=$(python_with numpy ${MK_PYTHON:-} python3 /usr/bin/python3)
torch=$(python_with torch ${MK_TORCH:-python3 /usr/bin/python3 "$build/torch/bin/python"}) numpy=${numpy:-$torch}

# ---- the launchers: missing_NAME says why there is none, start_NAME starts what it needs, launch_NAME COMMAND... runs it as two ranks ----

missing_mpirun() {
    command -v mpirun >/dev/null || echo "mpirun is not installed (apt-get install openmpi-bin)"
}
launch_mpirun() {
    mpirun --oversubscribe --bind-to none -np 2 "$@"
}

missing_torchrun() {
    [ -n "$torch" ] || echo "no Python here has PyTorch: MK_TORCH=PYTHON names one that has; \`make test\` installs one where pip brings it within two minutes"
}
launch_torchrun() {
    "$torch" -m torch.distributed.run --nproc-per-node 2 --master-port "$(free_port)" --no-python "$@"
}

# By hand, as somebody with a shell on each host does; `sweep` does it itself.
missing_ssh() {
    command -v ssh >/dev/null || { echo "ssh is not installed (apt-get install openssh-client)"; return; }
    command -v sshd >/dev/null || { echo "sshd is not here (apt-get install openssh-server; \`make test\` unpacks it)"; return; }
    [ "$(id -u)" != 0 ] || { getent passwd sshd && [ -d /run/sshd ]; } >/dev/null || unshare -m true 2>/dev/null ||
        echo "sshd of root wants a user sshd and /run/sshd, and this machine has neither them nor mount namespaces"
}
start_ssh() {
    local port=$(free_port) sshd=$(command -v sshd) name
    for name in host own; do ssh-keygen -q -t ed25519 -N '' -f "$work/$name-key" || return; done
    cat >"$work/sshd_config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey $work/host-key
AuthorizedKeysFile $work/own-key.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
CONFIG
    # what a user's ~/.ssh/config has, under names of hosts that are one
    printf 'Host here there\nHostName 127.0.0.1\nPort %s\nIdentityFile %s\nIdentitiesOnly yes\nUserKnownHostsFile %s\nHostKeyAlias here\nLogLevel ERROR\n' \
        "$port" "$work/own-key" "$work/known" >"$work/ssh_config"
    echo "here $(cut -d ' ' -f 1,2 "$work/host-key.pub")" >"$work/known"
    mkdir "$work/bin"
    printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$(command -v ssh)" "$work/ssh_config" >"$work/bin/ssh"
    chmod +x "$work/bin/ssh"
    if [ "$(id -u)" = 0 ] && ! { getent passwd sshd && [ -d /run/sshd ]; } >/dev/null; then # it is only unpacked: it sees them, nobody else
        { getent passwd; echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin'; } >"$work/passwd"
        serve unshare -m sh -c 'mount --bind "$1" /etc/passwd && mount -t tmpfs -o mode=755 none /run && mkdir /run/sshd && exec setpriv --pdeathsig TERM "$2" -D -e -f "$3"' \
            sh "$work/passwd" "$sshd" "$work/sshd_config"
    else
        serve "$sshd" -D -e -f "$work/sshd_config"
    fi
    until_true 10 "$work/bin/ssh" here true || { cat "$work/"*.log; return 1; }
}
launch_ssh() {
    local rank port=$(free_port) jobs= status=0 host
    for rank in 0 1; do
        [ $rank = 0 ] && host=here || host=there
        "$work/bin/ssh" $host "cd $PWD && RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port $passed $(printf "'%s' " "$@")" </dev/null &
        jobs="$jobs $!"
    done
    for rank in $jobs; do wait "$rank" || status=$?; done
    return "$status"
}
passed="MKERNEL_TUNING=none MKERNEL_TOKEN=$MKERNEL_TOKEN OPENBLAS_NUM_THREADS=1"

# Debian gives Slurm's daemons a suffix.
slurm() {
    command -v "$1" || command -v "$1-wlm"
}
missing_srun() {
    local name
    for name in munged srun slurmctld slurmd; do
        slurm $name >/dev/null || { echo "$name is not here (apt-get install slurm-wlm munge; \`make test\` unpacks them)"; return; }
    done
}
idle() {
    [ "$(sinfo -h -N -o %t | sort | uniq -c | tr -s ' ')" = " 2 idle" ]
}
# Two nodes, the first by this machine's name, which is where the ranks look for rank 0.
start_srun() {
    local host=$(hostname -s) slurmctld=$(slurm slurmctld) slurmd=$(slurm slurmd) i stepd
    getent hosts "$host" >/dev/null || export MKERNEL_HOST=127.0.0.1
    stepd=${slurmd/slurmd/slurmstepd}
    mkdir -m 700 "$work/slurm" "$work/slurm/state" || return
    (umask 077; head -c 128 /dev/urandom >"$work/slurm/munge.key")
    cat >"$work/slurm/slurm.conf" <<CONFIG
ClusterName=mkernel-$RANDOM$RANDOM
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/slurm/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPidFile=$work/slurm/slurmctld.pid
SlurmdPidFile=$work/slurm/slurmd.%n.pid
SlurmdSpoolDir=$work/slurm/spool.%n
StateSaveLocation=$work/slurm/state
SlurmdParameters=config_overrides
KillWait=2
ReturnToService=2
NodeName=$host NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=8
NodeName=$host-b NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=2 State=UP
CONFIG
    export SLURM_CONF=$work/slurm/slurm.conf
    serve munged -F -f --key-file="$work/slurm/munge.key" --socket="$work/slurm/munge.socket" --pid-file="$work/slurm/munge.pid" --log-file="$work/slurm/munge.log" --seed-file="$work/slurm/munge.seed"
    until_true 5 [ -S "$work/slurm/munge.socket" ]
    serve "$slurmctld" -D -f "$SLURM_CONF"
    for i in "$host" "$host-b"; do serve "$slurmd" -D -N "$i" -f "$SLURM_CONF" -d "$stepd"; done
    until_true 20 idle || { sinfo; cat "$work"/{munged,slurm}*.log "$work/slurm/munge.log"; return 1; }
}
launch_srun() {
    srun -N 2 --ntasks-per-node 1 "$@"
}

# ---- what runs under each ----

problem="--exec host --nic soft --shape 64,64,64 --iters 3 --timeout 20"

# LAUNCHER COMMAND...: all of it within a bound of its own; what it says goes to $work/said too.
launch() {
    local launcher=$1 MKERNEL_PORT=$(free_port) # a busy machine's other tests may have the one that mkernel would take
    shift
    export MKERNEL_PORT
    { launch_$launcher timeout -k 2 40 "$@" 2>&1; echo "status $?"; } | tee "$work/said" && grep -qx 'status 0' "$work/said"
}

# How many nodes of how many ranks the launcher makes of two.
nodes_of() {
    case $1 in ssh | srun) echo "2 nodes of 1" ;; *) echo "1 node of 2" ;; esac
}

says() {
    [ "$(grep -o -e "$1" "$work/said" | wc -l)" = "$2" ] || { echo "not $2 times in what was said: $1"; return 1; }
}

run_under() {
    launch $1 "$mkernel" run ag_gemm $problem --check && says "^ranks *$(nodes_of $1)," 1 && says '^verdict *right' 1
}

bench_under() {
    launch $1 "$mkernel" bench gemm_rs $problem && says "^ranks *$(nodes_of $1)," 1 && says '^verdict *right' 1
}

sweep_words="--vary op=ag_gemm:gemm_rs;exec=host;nic=soft;shape=64,64,64;iters=3;timeout=20 --repeats"

sweep_under() {
    local out=$work/$1.db
    if [ "$1" = ssh ]; then
        printf '%s@here\nthere\n' "$(id -un)" >"$work/hosts"
        PATH=$work/bin:$PATH timeout -k 2 40 "$mkernel" sweep $sweep_words 1 --hosts "$work/hosts" --out "$out" || return
    else
        launch $1 "$mkernel" sweep $sweep_words 1 --out "$out" || return
    fi
    measured "$out" 2
}

# FILE N: so many jobs of points are in it, and right.
measured() {
    "$mkernel" results "$1" export --json "$1.json" --csv "$1.csv" && [ "$(grep -c '"verdict": *"right"' "$1.json")" = "$2" ] || { cat "$1.json"; return 1; }
}

program="env MKERNEL_LIBRARY=$build/libmkernel.so PYTHONPATH=$PWD/experiments/python $numpy docs/examples/tutorial.py --numpy"

python_under() {
    [ -n "$numpy" ] || { echo "no Python here has numpy (apt-get install python3-numpy)"; return 77; }
    launch $1 $program && says 'rank [01] of 2 on cpu' 2 && says 'rank [01] of 2 done' 2
}

for launcher in $launchers; do
    for what in run bench sweep python; do eval "check_${launcher}_$what() { ${what}_under $launcher; }"; done
done

# torchrun takes two seconds to start: once for all.
check_torchrun_all() {
    local out=$work/torchrun.db of='MKERNEL_PORT=%s %s && '
    launch torchrun sh -c "$(printf "$of" "$(free_port)" "$mkernel run ag_gemm $problem --check" "$(free_port)" "$mkernel bench gemm_rs $problem" \
        "$(free_port)" "$mkernel sweep $(printf "'%s' " $sweep_words 1) --out $out" "$(free_port)" "$program")true" &&
        says "^ranks *1 node of 2," 2 && says '^verdict *right' 2 && measured "$out" 2 && says 'rank [01] of 2 on cpu' 2
}

# Ctrl-C at a sweep over hosts ends the ranks behind a real connection, too.
check_ssh_interrupted() {
    local out=$work/interrupted.db sweep status
    left() { pgrep -f "$mkernel.*$out" >/dev/null; }
    none_left() { ! left; }
    printf '%s@here\nthere\n' "$(id -un)" >"$work/hosts"
    PATH=$work/bin:$PATH "$mkernel" sweep $sweep_words 900 --hosts "$work/hosts" --out "$out" &
    sweep=$!
    some() { "$mkernel" results "$out" table | grep -q ag_gemm; }
    until_true 20 some || { kill "$sweep"; return 1; }
    kill -TERM "$sweep"
    wait "$sweep"
    status=$?
    until_true 10 none_left || { pgrep -af "$out"; echo "ranks are left"; return 1; }
    [ "$status" = 143 ] || { echo "status $status"; return 1; }
}

none_queued() {
    [ -z "$(squeue -h)" ]
}

# COMMAND: in a job of two nodes, to its end; what it says goes to $work/said.
batch() {
    printf '#!/bin/sh\n%s\necho "status $?"\n' "$1" >"$work/batch"
    shift
    sbatch -N 2 --ntasks-per-node 1 -o "$work/said" "$@" "$work/batch" && until_true 60 none_queued # sbatch --wait asks every few seconds
    cat "$work/said"
}

# A batch script itself is no rank, though Slurm tells it a number of tasks; the srun in it is a job of ranks, and without MKERNEL_TOKEN
# its secret comes from Slurm's ids.
check_srun_in_a_batch() {
    batch "unset MKERNEL_TOKEN; $mkernel run ag_gemm $problem --gpus 2 --check && srun $mkernel run ag_gemm $problem --check"
    says '^status 0' 1 && says '^ranks *1 node of 2,' 1 && says '^ranks *2 nodes of 1,' 1 && says '^verdict *right' 2
}

# mpirun in a job of Slurm's starts its ranks on the other nodes by a step of theirs alone.
check_srun_mpirun() {
    [ -z "$(missing_mpirun)" ] || { missing_mpirun; return 77; }
    batch "mpirun --map-by ppr:1:node --bind-to none $mkernel run ag_gemm $problem --check"
    says '^status 0' 1 && says '^ranks *2 nodes of 1,' 1 && says '^verdict *right' 1
}

# Every rank says it, so that none waits for the others.
check_srun_refused() {
    local way
    for way in "-n 3" "--ntasks-per-node 2 -m cyclic"; do
        srun -N 2 $way "$mkernel" run ag_gemm $problem >"$work/said" 2>&1
        [ $? = 2 ] || { cat "$work/said"; return 1; }
        cat "$work/said"
        case $way in
        *3) says 'every node must have the same number (srun --ntasks-per-node)' 3 ;;
        *) says 'ranks must be numbered node by node (srun --distribution=block)' 4 ;;
        esac || return
    done
}

# A sweep over the tasks of an array: all points are in one file, once, and no part is left. Within a task srun's tasks are a point's ranks.
check_srun_array() {
    local out=$work/array.db
    batch "srun $mkernel sweep --vary 'op=ag_gemm:gemm_rs;exec=host;nic=soft;shape=64,64,64:64,64,128;iters=3;timeout=20' --repeats 2 --spread array --quiet --out $out" \
        --array=0-2 -o "$work/said-%a"
    cat "$work"/said-[0-2] >"$work/said"
    cat "$work/said"
    says '^status 0' 3 && measured "$out" 8 && [ "$(echo "$out".part*)" = "$out.part*" ]
}

# scancel ends a task of it; what it has measured is in the file.
check_srun_cancelled() {
    local out=$work/cancelled.db
    printf '#!/bin/sh\n%s sweep --vary "op=ag_gemm;exec=host;gpus=2;shape=64,64,64;iters=3;timeout=20" --repeats 900 --spread array --quiet --out %s\n' "$mkernel" "$out" >"$work/batch"
    sbatch --array=0-0 -N 1 -o "$work/said" "$work/batch"
    part() { ls "$out".part.*[0-9] && "$mkernel" results "$out".part.*[0-9] table | grep -q ag_gemm; }
    until_true 20 part && scancel -u "$(id -un)" && until_true 20 none_queued
    cat "$work/said"
    says 'interrupted by signal 15' 1 && "$mkernel" results "$out" table && [ "$(echo "$out".part*)" = "$out.part*" ]
}

# And over the tasks of srun, each of which is a whole job.
check_srun_spread() {
    local out=$work/spread.db
    launch srun "$mkernel" sweep --vary 'op=ag_gemm:gemm_rs;exec=host;gpus=2;shape=64,64,64:64,64,128;iters=3;timeout=20' --repeats 2 --spread srun --quiet --out "$out" || return
    says 'this task.s part of' 2 && measured "$out" 8 && [ "$(echo "$out".part*)" = "$out.part*" ]
}

for name in ${*:-$checks}; do
    launcher=${name%%_*}
    begun=begun_$launcher
    if [ -z "${!begun:-}" ]; then
        why=missing_$launcher
        declare "begun_$launcher=$($why)"
        if [ -n "${!begun}" ]; then
            :
        elif ! declare -F "start_$launcher" >/dev/null; then
            declare "begun_$launcher=yes"
        elif "start_$launcher" >"$work/start.log" 2>&1; then
            declare "begun_$launcher=yes"
        else
            declare "begun_$launcher=failed"
        fi
    fi
    case ${!begun} in
    yes) check "$name" ;;
    failed) printf '[ RUN      ] %s\n' "$name"; sed 's/^\[/ [/' "$work/start.log"; printf '[  FAILED  ] %s\n' "$name"; check_failed=1 ;;
    *) check_skip_all "${!begun}" "$name" ;;
    esac
done
check_end
