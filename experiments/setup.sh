#!/bin/sh
# Installs with apt what `make demo` or `make test` needs and this machine lacks, after saying so. Usage: setup.sh demo|test
set -eu
packages="gcc make libc6-dev libsqlite3-dev libncurses-dev libopenblas-dev libibverbs-dev"
[ "${1:-}" = test ] && packages="$packages git libcmocka-dev clang libclang-rt-dev gnuplot-nox tmux spin ibverbs-utils perftest python3 iproute2"

present() { # libclang-rt-dev is named after clang's version; the library itself is the evidence
    case $1 in
    libclang-rt-dev) ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a /usr/lib/llvm-*/lib/clang/*/lib/*/libclang_rt.fuzzer*.a >/dev/null 2>&1 ||
        [ -n "$(find /usr/lib/llvm-* -name 'libclang_rt.fuzzer*.a' 2>/dev/null | head -n 1)" ] ;;
    *) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' ;;
    esac
}

missing=
for p in $packages; do present "$p" || missing="$missing $p"; done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "setup: missing:$missing. This machine has no apt-get; install them by hand." >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: missing:$missing. Run as root, or install sudo." >&2; exit 1; }
    sudo=sudo
fi
echo "setup: installing with apt:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# Debian 12 and older Ubuntus have the runtime of sanitizers and fuzzers under the version's name only.
case "$missing " in
*" libclang-rt-dev "*)
    if ! apt-cache show libclang-rt-dev >/dev/null 2>&1; then
        version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
        named=libclang-rt-$version-dev
        apt-cache show "$named" >/dev/null 2>&1 || named="libclang-common-$version-dev"
        missing=$(echo "$missing" | sed "s/libclang-rt-dev/$named/")
    fi ;;
esac
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
echo "setup: done"
