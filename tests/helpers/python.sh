#!/bin/sh
# Runs a file of cases in Python (tests/helpers/cases.py) against the wheel, unpacked. Usage: python.sh FILE WHEEL FOLDER numpy|torch
# [CASE...]. The Python is the first of MK_TORCH (for torch), MK_PYTHON, python3, /usr/bin/python3 and build/torch/bin/python (for torch;
# setup.sh has made it) that has numpy or torch; where none has, each case is skipped by name. Nothing is downloaded.
set -u
file=$1 wheel=$2 folder=$3 needs=$4
shift 4
first= venv=
[ "$needs" != torch ] || first=${MK_TORCH:-} venv=${folder%/tests/*}/torch/bin/python
python=
for p in ${first:-${MK_PYTHON:-} python3 /usr/bin/python3 $venv}; do
    "$p" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$needs') is None)" 2>/dev/null && python=$p && break
done
if [ -z "$python" ]; then
    case $needs in
    torch) reason="no Python here has PyTorch: MK_TORCH=PYTHON names one that has; \`make test\` installs one where pip brings it within two minutes" ;;
    *) reason="no Python here has numpy (apt-get install python3-numpy)" ;;
    esac
    sed -n '/^@case$/{n;s/^def \([a-z_0-9]*\).*/\1/p}' "$file" | while read -r name; do
        printf '[ RUN      ] %s\nskipped: %s\n[  SKIPPED ] %s\n' "$name" "$reason" "$name"
    done
    exit 0
fi
# A test of its own folder: two files of cases may run at once.
rm -rf "$folder" && mkdir -p "$folder" && "$python" -m zipfile -e "$wheel" "$folder" || exit 1
# One thread of PyTorch's a rank, as torchrun has it: threads of several ranks that wait for each other take the others' cores.
export OMP_NUM_THREADS=1
unset MKERNEL_LIBRARY RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
PYTHONPATH=$PWD/$folder:$PWD/tests/helpers MK_WHEEL=$wheel exec "$python" -u "$file" "$@"
