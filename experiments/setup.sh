#!/bin/sh
# Installs with apt what `make demo` or `make test` needs and this machine lacks, after saying so; for `make test` also PyTorch, in
# BUILD/torch, where pip brings it within two minutes, and unpacks servers that tests start by themselves in BUILD/launchers. Usage: setup.sh demo|test|rxe [BUILD]
set -eu
goal=${1:-}
build=${2:-build}
needed="gcc make libc6-dev libsqlite3-dev libncurses-dev libopenblas-dev libibverbs-dev libyaml-dev"
wanted= # what single tests need; they skip without it
vm="ibverbs-utils ibverbs-providers perftest iproute2" # on the machine's own rxe, and in the virtual machines, which run this machine's programs
[ "$(uname -m)" != x86_64 ] || vm="$vm qemu-system-x86 busybox-static xz-utils"
case ${1:-} in
test) needed="$needed libcmocka-dev"
    wanted="git clang clang-format-14 pkg-config libclang-rt-dev tmux spin python3 python3-numpy python3-matplotlib python3-venv openmpi-bin openssh-client libwrap0 slurm-wlm-basic-plugins $vm" ;;
rxe) wanted=$vm ;;
esac

# PyTorch is 5 GB: not where a Python has it (those that tests/helpers/python.sh asks), and not against MK_TORCH=no. transformers only goes into what is made here.
pytorch() {
    [ "${1:-}" = test ] && [ -z "${MK_TORCH:-}" ] && command -v python3 >/dev/null || return 0
    for p in python3 /usr/bin/python3 "$build/torch/bin/python"; do
        if "$p" -c "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)" 2>/dev/null; then
            [ "$p" != "$build/torch/bin/python" ] || transformers
            return 0
        fi
    done
    if [ "$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')" -lt 10 ]; then
        echo "setup: less than 10 GB free: no PyTorch; its tests are skipped"
        return 0
    fi
    echo "setup: installing PyTorch with pip in $build/torch, 5 GB, two minutes at most (MK_TORCH=no leaves it out, MK_TORCH=PYTHON names one)"
    mkdir -p "$build"
    rm -rf "$build/torch.new"
    if python3 -m venv "$build/torch.new" && timeout 120 "$build/torch.new/bin/python" -m pip install -q torch numpy safetensors >"$build/torch.log" 2>&1; then
        mv "$build/torch.new" "$build/torch"
        transformers
    else
        rm -rf "$build/torch.new"
        echo "setup: pip did not bring PyTorch ($build/torch.log); its tests are skipped"
    fi
}

transformers() {
    "$build/torch/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('transformers') is None)" 2>/dev/null && return 0
    echo "setup: installing transformers with pip in $build/torch, 300 MB, a minute at most"
    timeout 60 "$build/torch/bin/python" -m pip install -q transformers >>"$build/torch.log" 2>&1 || echo "setup: pip did not bring transformers ($build/torch.log); tests of its models are skipped"
}

# Servers that apt would start, and start again at each boot, are not installed: the test of launchers starts them from here, as its own.
servers() {
    [ "${1:-}" = test ] && command -v apt-get >/dev/null || return 0
    absent=
    for p in openssh-server/sshd munge/munged slurm-client/srun slurmctld/slurmctld slurmd/slurmd; do
        found=
        for at in /usr/sbin /usr/bin "$build/launchers/usr/sbin" "$build/launchers/usr/bin"; do
            [ ! -x "$at/${p#*/}" ] && [ ! -x "$at/${p#*/}-wlm" ] || found=yes
        done
        [ -n "$found" ] || absent="$absent ${p%/*}"
    done
    [ -n "$absent" ] || return 0
    echo "setup: unpacking in $build/launchers, without installing them:$absent"
    mkdir -p "$build/launchers"
    for p in $absent; do
        (cd "$build/launchers" && rm -f "$p"_*.deb && apt-get download -qq "$p" && dpkg-deb -x "$p"_*.deb . && rm -f "$p"_*.deb) >"$build/launchers.log" 2>&1 ||
            echo "setup: $p is not to be had here; what needs it is skipped"
    done
}

present() {
    case $1 in
    libclang-rt-dev) # named after clang's version almost everywhere: the library itself is the evidence
        [ -n "$(find /usr/lib/llvm-* -name 'libclang_rt.fuzzer*.a' 2>/dev/null | head -n 1)" ] ;;
    *) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' ;;
    esac
}

missing=
for p in $needed $wanted; do present "$p" || missing="$missing $p"; done
if [ -z "$missing" ]; then
    servers "$@"
    pytorch "$@"
    exit 0
fi
# Under other names, or made by hand, all may be there: make asks the compiler, and ends where something is not.
by_hand() {
    echo "setup: $1: nothing is installed. Debian's packages for it, of which some may be here under other names:$missing" >&2
    pytorch "$goal"
    exit 0
}
command -v apt-get >/dev/null || by_hand "this machine has no apt-get"
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || by_hand "this is not root, and there is no sudo"
    sudo=sudo
fi
echo "setup: installing with apt:$missing"
$sudo apt-get update -qq || echo "setup: apt-get update failed; going on with the lists that are there" >&2

# Debian 12 and Ubuntu have the runtime of sanitizers and fuzzers under the version's name only, and Ubuntu 22.04 in
# another package. What a distribution has not at all is left out, where only single tests want it.
has() { apt-cache show "$1" >/dev/null 2>&1; }
packages=
for p in $missing; do
    if [ "$p" = libclang-rt-dev ] && ! has "$p"; then
        version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
        p=libclang-rt-$version-dev
        has "$p" || p=libclang-common-$version-dev
    fi
    if ! has "$p" && ! echo " $needed " | grep -q " $p "; then
        echo "setup: $p is not to be had here; what needs it is skipped"
        continue
    fi
    packages="$packages $p"
done
# shellcheck disable=SC2086
[ -z "$packages" ] || $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
servers "$@"
pytorch "$@"
echo "setup: done"
