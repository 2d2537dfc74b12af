#!/bin/sh
# Makes what a virtual machine with soft-RoCE boots: DIR/vmlinuz and DIR/initramfs. Usage: image.sh DIR
# The kernel is Debian's, taken out of its package; nothing is installed. Where no such package can be had, the kernel that runs
# here does, if its image can be read and it has rdma_rxe. Exit status 77, with the reason on stdout, where neither is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
modules="virtio_pci virtio_net 9pnet_virtio 9p crc32_generic ib_uverbs rdma_rxe sch_netem"

none() {
    echo "$1"
    exit 77
}

command -v busybox >/dev/null || none "busybox is not installed"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
new=$dir/new.$$
trap 'rm -rf "$new"' EXIT
mkdir "$new"

# Which kernel: a package by name and version, or the host's own.
package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
[ "$(uname -m)" = x86_64 ] || none "the virtual machines are x86-64 ones, this machine is $(uname -m)"
if [ -n "$package" ]; then
    wanted="$package $(apt-cache show --no-all-versions "$package" | sed -n 's/^Version: //p')"
else
    wanted="host $(uname -r)"
fi
wanted="$wanted $(cat "$here/init" "$0" | cksum)"
[ "$(cat "$dir/made-of" 2>/dev/null)" = "$wanted" ] && exit 0

if [ -n "$package" ]; then
    (cd "$new" && apt-get -qq download "$package" >download.log 2>&1) || none "cannot download $package: $(tail -n 1 "$new/download.log")"
    mkdir "$new/kernel"
    dpkg-deb --fsys-tarfile "$new"/*.deb | tar -x -C "$new/kernel" --wildcards './boot/vmlinuz*' './lib/modules' './usr/lib/modules' 2>/dev/null || true
    image=$(ls "$new"/kernel/boot/vmlinuz* 2>/dev/null) || none "$package has no kernel image"
    tree=$(ls -d "$new"/kernel/lib/modules/* "$new"/kernel/usr/lib/modules/* 2>/dev/null | head -n 1)
else
    image=/boot/vmlinuz-$(uname -r)
    tree=/lib/modules/$(uname -r)
    [ -r "$image" ] || none "apt has no package linux-image-amd64, and $image cannot be read"
fi
[ -n "$(find "$tree/" -name 'rdma_rxe.ko*' 2>/dev/null)" ] || none "the kernel of $image has no module rdma_rxe"
version=$(basename "$tree")

# Modules may be compressed, which busybox's modprobe does not read: first all, plain, to learn what needs what.
all=$new/all/lib/modules/$version
own=$new/root/lib/modules/$version
mkdir -p "$all/kernel" "$own/kernel"
find "$tree/kernel" -name '*.ko*' | grep -E '/(crypto|lib|net|fs|arch|drivers/(virtio|net|infiniband))/' | while read -r file; do
    case $file in
    *.ko) ln -s "$file" "$all/kernel/" ;;
    *.xz) xz -dc "$file" >"$all/kernel/$(basename "$file" .xz)" ;;
    *.zst) zstd -qdc "$file" >"$all/kernel/$(basename "$file" .zst)" ;;
    esac
done
busybox depmod -b "$new/all" "$version"
for m in $modules; do # one that is built into the kernel has no line
    sed -n "s/^\(.*\/\)\{0,1\}$m\.ko:/$m.ko /p" "$all/modules.dep"
done | tr ' ' '\n' | sed 's/.*\///' | sort -u | while read -r file; do [ -z "$file" ] || cp -L "$all/kernel/$file" "$own/kernel/"; done
busybox depmod -b "$new/root" "$version"

mkdir "$new/root/bin" "$new/root/host" "$new/root/proc" "$new/root/sys" "$new/root/dev"
cp "$(command -v busybox)" "$new/root/bin/busybox"
sed "s/@MODULES@/$modules/" "$here/init" >"$new/root/init"
chmod 755 "$new/root/init"
(cd "$new/root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$new/initramfs"
cp "$image" "$new/vmlinuz"
mv "$new/vmlinuz" "$new/initramfs" "$dir/"
echo "$wanted" >"$dir/made-of"
