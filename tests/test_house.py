"""The tree is built as docs/DESIGN.md says: folders include one way, operators are named by their own files alone, core's headers
stand alone, and the roles compile for the GPU."""
import glob
import os
import re
import shutil
import subprocess
import tempfile

from cases import Skip, case, main, run

BUILD = os.path.dirname(os.environ["MK_WHEEL"])

# What a folder's files may include: these folders' files, or these files.
RULES = {
    "core": "core/",
    "backends": "backends/ core/",
    "tracer": "tracer/ core/",
    "kernels": "kernels/ core/ backends/ tracer/",
    "sim": "sim/ core/ backends/ tracer/ kernels/",  # the emulated GPU runs kernels
    "tui": "tui/ core/base/clock.h core/base/scoped.h core/base/sentence.h core/base/sorted.h"
    " tracer/query.h tracer/reader.h tracer/why.h tracer/live.h",
    "experiments": "experiments/ core/ backends/ tracer/ kernels/ sim/ tui/",
}

# Which other folders of experiments/ a folder there includes. There is no way back from common/ to job/, nor from job/ to run/,
# bench/ and tune/.
PARTS = {
    "common": "",
    "baselines": "common",
    "job": "common baselines",
    "ops": "common job",
    "run": "common job",
    "bench": "common job run baselines",  # a bench on the host is a run
    "tune": "common job sim",
    "sim": "common",
    "trace": "common",
    "info": "common",
    "results": "common job",  # an operator's collective is in job/op.h
    "sweep": "common info job results",
}

# Folders that include each other, both ways. There may be fewer, never more.
BOTH_WAYS = {
    ("backends", "backends/efa"),  # the code that opens a fabric knows each of them
    ("backends", "backends/verbs"),
    ("core/model", "core/ops"),
    ("core/model", "core/plan"),
    ("core/ops", "core/plan"),  # a plan asks its operator's descriptor
    ("sim", "sim/hopper"),
}

# Files that name an operator though they are not its own, and in how many lines at most.
NAMING = {
    "core/mkernel.h": 9,  # calls with an operator's own arguments, for programs in C
    "core/model/gemm.h": 7,  # the operators' own parts of the quick model
    "core/model/moe.c": 10,  # dispatch is the first part of the others
    "experiments/sim/calibrate_measure.c": 9,  # shapes that were chosen for what they tell
}

# The largest set of files of a folder that all call each other in the end, as their objects say; elsewhere 1.
CIRCLES = {
    "backends": 2, "backends/efa": 4, "backends/verbs": 2, "core/plan": 2,
    "experiments/bench": 2, "experiments/sim": 2, "experiments/trace": 2, "experiments/tune": 3,
    "sim": 2, "sim/hopper": 2, "sim/timed": 4, "tracer": 2, "tui": 3,
}  # fmt: skip


def sources(folder, endings=("c", "h", "cu", "cuh")):
    found = glob.glob(folder + "/**/*", recursive=True)
    return sorted(path for path in found if path.rpartition(".")[2] in endings)


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


def includes(path):
    """Line, bracket and name of each include."""
    for number, line in enumerate(read(path).splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)', line)
        if found:
            yield number, found[1], found[2]


def none(wrong):
    assert not wrong, "\n" + "\n".join(wrong)


@case
def everybody_includes_what_is_theirs():
    wrong, count = [], 0
    for folder, may in RULES.items():
        for path in sources(folder):
            for number, bracket, name in includes(path):
                # angle brackets are no way round
                if bracket == "<" and name.partition("/")[0] not in RULES:
                    continue
                beside = os.path.join(os.path.dirname(path), name)  # the compiler looks there first
                leads = beside if os.path.exists(beside) else name
                count += 1
                if (not os.path.exists(leads) or ".." in leads
                        or not leads.startswith(tuple(may.split()))):  # fmt: skip
                    wrong.append(f"{path}:{number} includes {leads}")
    none(wrong)
    assert count > 1000  # the walk did walk


@case
def folders_include_one_way():
    ways = set()
    for path in [path for folder in RULES for path in sources(folder)]:
        for _, bracket, name in includes(path):
            if bracket == '"' and "/" in name and os.path.exists(name):
                ways.add((os.path.dirname(path), os.path.dirname(name)))
    both = {(x, y) for x, y in ways if x < y and (y, x) in ways}
    none([f"{x} and {y} include each other" for x, y in both - BOTH_WAYS])
    none([f"{x} and {y} no longer do: take them out of BOTH_WAYS" for x, y in BOTH_WAYS - both])
    assert len(ways) > 50


@case
def folders_of_experiments_include_one_way():
    wrong = []
    for path in sources("experiments"):
        if path in ("experiments/main.c", "experiments/tui.c"):
            continue  # above all folders
        part = path.split("/")[1]
        for number, _, name in includes(path):
            to = name.split("/")
            if to[0] == "experiments" and to[1] not in (part, *PARTS[part].split()):
                wrong.append(f"{path}:{number} includes {name}")
    none(wrong)


def code_of(text):
    """The text without comments, each on its lines; strings keep their words."""
    string = r'"(?:\\.|[^"\\\n])*"'
    blank = lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0])
    return re.sub(string + r"|//[^\n]*|/\*.*?(?:\*/|$)", blank, text, flags=re.S)


def operators_in(code, names):
    """Numbers of the lines that name an operator: as MK_OP_..., inside an identifier, or as a whole string; not in a sentence or in
    an include."""
    name = "|".join(names)
    word = rf'"(?:{name})"|\bMK_OP_[A-Z]|(?<![A-Za-z0-9])(?:{name})(?![A-Za-z0-9])'
    sentence = re.compile(r'"(?:\\.|[^"\\])*"')
    whole = re.compile(rf'"(?:{name})"')
    lines = []
    for number, line in enumerate(code.splitlines(), 1):
        if not re.match(r"\s*#\s*include", line):
            line = sentence.sub(lambda s: s[0] if whole.fullmatch(s[0]) else '""', line)
            if re.search(word, line):
                lines.append(number)
    return lines


@case
def operators_are_named_by_their_own_files_alone():
    names = re.findall(r"\bX\(([a-z]\w+), [A-Z]", read("core/ops/registry.h"))
    assert "gemm_rs" in names and len(names) >= 8, names
    seen = 'x("all_gather")\ny = mk_gemm_rs_plan();\ncase MK_OP_GEMM_AR:\n'
    unseen = '"run ag_gemm --check" /* gemm_rs\n * of moe_ffn */ int x; // all_gather\n'
    assert operators_in(code_of(seen + unseen), names) == [1, 2, 3]
    wrong = []
    own = ("/ops/", "core/roles/", "kernels/sums/", "kernels/moe/", "kernels/attention/")
    for path in [path for folder in RULES for path in sources(folder)]:
        if any(x in path for x in own) or any(x in os.path.basename(path) for x in names):
            continue
        lines = operators_in(code_of(read(path)), names)
        if len(lines) > NAMING.get(path, 0):
            wrong.append(f"{path}:{lines} names operators: descriptors should say what it asks")
        elif len(lines) < NAMING.get(path, 0):
            print(f"{path} names operators in {len(lines)} lines: lower that in NAMING")
    none(wrong)


def largest_circle(calls):
    """Of files and the files that each calls: the largest set of files that all call each other in the end."""
    reach = {x: set(calls[x]) for x in calls}
    for by in calls:
        for x in calls:
            if by in reach[x]:
                reach[x] |= reach[by]
    return max(({y for y in calls if y in reach[x] and x in reach[y]} for x in calls), key=len)


@case
def files_of_a_folder_call_one_way():
    wrong, files = [], 0
    assert largest_circle({1: {2}, 2: {3}, 3: {1}, 4: {1}}) == {1, 2, 3}
    folders = [folder for folder in RULES if folder != "kernels"]  # C++: all is inline there
    for folder in [f for top in folders for f, _, _ in os.walk(f"{BUILD}/{top}")]:
        objects = [x for x in glob.glob(folder + "/*.o") if not x.endswith(".cu.o")]
        if not objects:
            continue
        defines, wants = {}, []
        for line in run(["nm", "-A", "-P", *objects]).splitlines():
            path, _, rest = line.partition(": ")
            name, kind = rest.split()[:2]
            if kind in "TDBRCVG":
                defines[name] = path
            elif kind == "U":
                wants.append((path, name))
        calls = {x: set() for x in objects}
        for path, name in wants:
            calls[path].update([defines[name]] if name in defines else [])
        circle = largest_circle(calls)
        most = CIRCLES.get(os.path.relpath(folder, BUILD), 1)
        if len(circle) > most:
            wrong.append(f"{folder}: {circle} call each other in a circle, {most} may")
        elif len(circle) < most and most > 1:
            print(f"{folder}: a circle of {len(circle)} files: lower that in CIRCLES")
        files += len(objects)
    none(wrong)
    assert files > 100


@case
def quick_finds_what_a_change_touches():
    """tests/quick.sh finds the tests that a change touches, whatever they are written in, and no others; of a file that touches none
    it says so."""
    touches = {
        "experiments/results/statistics.c": ("test_statistics", "test_plan"),  # its header
        "tests/test_plan.c": ("test_plan", "test_statistics"),  # itself
        "tests/helpers/trace_parts.h": ("test_trace_reader", "test_plan"),  # a helper
        "tui/layout.c": ("test_tui_golden", "test_plan"),  # the folder
        "backends/softnic/options.c": ("test_softnic_faults", "test_tuning"),
        "experiments/tune/tune_report.c": ("test_tune", "test_softnic_rc"),  # the subcommand
        "core/base.h": ("test_tuning", "test_statistics"),  # by way of another
        "tests/helpers/command.h": ("test_survive", "test_plan"),
        "docs/GUIDE.md": ("test_guide", "test_plan"),  # named
        "tracer/views.sql": ("test_trace_views", "test_plan"),  # embedded
        "experiments/machines/8xH200-efa": ("test_machine", "test_tui_golden"),
        "core/plan/tuning.plans": ("fuzz_tuning.sh", "test_statistics"),  # in a fuzzer, too
        "core/plan/tuning_file.c": ("test_python_numpy.sh", "test_statistics"),  # below all
        "core/comm/launcher.c": ("test_launchers.sh", "test_statistics"),
        "experiments/python/mkernel/operators.py": ("test_python_torch.sh", "test_plan"),
        "experiments/baselines/torch_norm.py": ("test_python_torch.sh", "test_plan"),
        "tests/test_launchers.sh": ("test_launchers.sh", "test_plan"),
        "tests/golden/tui-why-120x40-utf8.txt": ("test_tui_golden", "test_plan"),
        "CONTRIBUTING.md": (None, "test_plan"),
        "tests/gpu_ring.cu": (None, "test_plan"),  # which `make check` cannot run either
    }
    for path, (one, other) in touches.items():
        text = run(["tests/quick.sh", BUILD, path], status=0 if one else 3)
        counts = re.search(r"quick: 1 changed files touch (\d+) test programs; (\d+) of them", text)
        assert counts, (path, text)
        assert (f"quick: nothing is known of {path}: make check\n" in text) == (not one), text
        words = re.split(r"[/\s]", text)
        assert (not one or one in words) and other not in words, (path, text)
        if path == "tests/helpers/command.h":  # minutes of tests
            assert int(counts[1]) > 30 and int(counts[2]) < int(counts[1]), text
            assert "quick: left to make check:" in text


@case
def waits_go_by_the_monotonic_clock():
    """A step of the wall clock lengthens no wait and cuts none."""
    waits = [x for folder in RULES for x in sources(folder) if "pthread_cond_timedwait" in read(x)]
    assert waits == ["core/base/clock.h"], waits


@case
def ptx_lies_in_three_files():
    """Other GPUs' kernels replace those files alone."""
    ptx = [x for x in sources("kernels") if re.search(r"\basm( volatile|\()", read(x))]
    assert ptx == ["kernels/engine/ptx.cuh", "kernels/hopper/wgmma.cuh", "kernels/mma/mma.cuh"], ptx


@case
def kernels_call_every_wrapper():
    """A PTX wrapper that only tests call lies with them (tests/helpers/conform_ptx.cuh)."""
    code = "\n".join(code_of(read(path)) for path in sources("kernels"))
    made = set(re.findall(r"PTX_FN [^(\n]*?\b((?:ptx|wgmma|mma)_\w+)\(", code))
    assert len(made) >= 40, made
    none([f"no kernel calls {x}" for x in sorted(made) if len(re.findall(rf"\b{x}\b", code)) < 2])


@case
def a_new_operator_compiles_no_kernel_anew():
    """nvcc takes minutes for all kernels. The emulated Hopper's headers stand in for CUDA's."""
    kernels = sources("kernels", ["cu"])
    for path in kernels:
        flags = "-std=c++17 -x c++ -MM -I sim/hopper/include -I. -D__CUDACC__ -DMK_EMULATED"
        sees = run(["g++", *flags.split(), path])
        assert not re.search("core/ops/registry.h|core/mkernel.h|core/plan/plan.h", sees), f"{path}: {sees}"
    assert len(kernels) > 4


def compiled(command, source):
    """Status of a compiler's command on the source, and what it says."""
    with tempfile.NamedTemporaryFile("w", suffix=".cu") as file:
        file.write(source)
        file.flush()
        done = subprocess.run(command.split() + [file.name], stdout=-1, stderr=-2, text=True)
    return done.returncode, done.stdout


@case
def headers_of_core_compile_alone():
    """Twice each: once to find what it needs, once to find that it has a guard."""
    command = os.environ.get("CC", "cc") + " -std=gnu11 -x c -I. -Wall -Wextra -Werror"
    command += " -Wno-unused-parameter -Wno-unused-function -fsyntax-only"
    headers = sources("core", ["h"])
    for path in headers:
        status, said = compiled(command, f'#include "{path}"\n' * 2)
        assert status == 0, f"{path}: {said}"
    assert len(headers) > 10


# Kernels that call the roles of operators.
ROLES = [
    """#include "core/roles/ag_gemm.h"
__global__ void ag_gemm(ag_gemm_plan p, mk_cta c, int *out) {
    mk_tile t;
    ag_gemm_tile(&p, blockIdx.x, &t);
    *out = ag_gemm_before(&p, &c, 1, &t, 0) + ag_gemm_intra_comm(&p, &c, 1) +
           ag_gemm_inter_send(&p, &c, 1);
}""",
    """#include "core/roles/gemm_rs.h"
#include "core/roles/gemm_ar.h"
__global__ void reduce(gemm_rs_plan p, mk_cta c, int *out) {
    mk_tile t;
    gemm_rs_tile(&p, blockIdx.x, &t);
    gemm_rs_after(&p, &c, &t, 1);
    *out = gemm_rs_before(&p, &c, &t) + gemm_rs_inter_send(&p, &c) +
           (int)gemm_rs_tile_offset(&p, &t, c.epoch);
}
__global__ void all_reduce(gemm_ar_plan p, mk_cta c, int *out) {
    mk_tile t;
    gemm_rs_tile(&p.rs, blockIdx.x, &t);
    gemm_ar_after(&p, &c, &t, 0, t.rows, 1, 0);
    *out = gemm_ar_inter_send(&p, &c) + gemm_ar_intra_comm(&p, &c, 1);
}""",
    """#include "core/roles/ring_attention.h"
__global__ void attend(ring_attention_plan p, mk_cta c, int *out) {
    mk_tile t;
    ring_attention_tile(&p, blockIdx.x, &t);
    *out = ring_attention_before(&p, &c, &t) + ring_attention_intra_comm(&p, &c) +
           ring_attention_inter_send(&p, &c);
}""",
    """#include "core/roles/moe_dispatch_gemm.h"
__global__ void dispatch(moe_dispatch_gemm_plan p, mk_cta c, int *out) {
    mk_tile t;
    moe_tile(&p, &c, blockIdx.x, &t);
    *out = moe_before(&p, &c, &t) + moe_intra_comm(&p.dispatch, &c) +
           moe_inter_send(&p.dispatch, &c);
}""",
    """#include "core/roles/moe_ffn.h"
__global__ void layer(moe_ffn_plan p, mk_cta c, int *out) {
    mk_tile t;
    moe_ffn_tile(&p, &c, blockIdx.x, &t);
    moe_ffn_after(&p, &c, &t, 1);
    *out = moe_ffn_before(&p, &c, t.stage == MOE_FFN_UP, t.row) + moe_ffn_inter_reduce(&p, &c);
}""",
    """#include "core/roles/moe_combine.h"
__global__ void rows(moe_dispatch_plan p, moe_combine_plan q, mk_cta c, int *out) {
    *out = moe_dispatch_run(&p, &c) + moe_combine_run(&q, &c);
}""",
]

# The calls of the CTA interface that a GPU need not have (core/cta/cta_*.h), and what stands in for them here.
EXTENSIONS = [
    "int mk_cta_settle(mk_cta *)",
    "void mk_cta_combine(mk_cta *, const mk_combine *)",
    "void mk_cta_add_up(mk_cta *, const mk_sums *)",
    "int mk_cta_wait_sums(mk_cta *, const mk_sums *, const mk_sums_flags *)",
    "int mk_cta_wait_rows(mk_cta *, const mk_places *, uint64_t, uint32_t, uint32_t, uint32_t,"
    " mk_cause)",
    "void mk_cta_route(mk_cta *, const mk_route *)",
    "int mk_cta_overflow(mk_cta *, mk_route_over, uint32_t, uint32_t, uint32_t)",
    "void mk_cta_copy_listed(mk_cta *, uint32_t, const mk_rows *)",
    "void mk_cta_spread(mk_cta *, uint32_t, const mk_spread *)",
    "void mk_cta_tell_rows(mk_cta *, uint32_t, uint32_t, uint32_t, const mk_places *)",
    "uint32_t mk_cta_load(mk_cta *, uint64_t)",
    "uint32_t mk_cta_load_argument(mk_cta *, mk_space)",
    "void mk_cta_norm(mk_cta *, const mk_norm *, uint32_t)",
    "uint64_t mk_cta_load64(mk_cta *, uint64_t)",
]


@case
def roles_compile_for_the_gpu():
    """Against the GPU's own CTA. A role that makes a call which the GPU lacks does not compile, and the compiler names that call; with
    something in its place it does."""
    known = {re.search(r"mk_cta_\w+", x)[0]: x for x in EXTENSIONS}
    declared = set()
    for path in glob.glob("core/cta/cta_*"):
        declared.update(re.findall(r" (mk_cta_[a-z0-9_]+)\(struct mk_cta \*", read(path)))
    assert declared == set(known), declared ^ set(known)
    gpu = glob.glob("kernels/cta/cta*.cuh")
    code = "".join(read(path) for path in gpu)
    lacks = {x: y for x, y in known.items() if f" {x}(struct mk_cta *" not in code}
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr/local/cuda-13.0",
             "/usr/local/cuda-12.9"]  # fmt: skip
    places = [os.environ.get("NVCC"), *(home and home + "/bin/nvcc" for home in homes), "nvcc"]
    nvcc = next((place for place in places if place and shutil.which(place)), None)
    if not nvcc:
        raise Skip("no nvcc")
    command = f"nice {nvcc} -std=c++17 -O1 -Xcicc -O1 -I. -Wno-deprecated-gpu-targets"
    command += " -gencode=arch=compute_90a,code=compute_90a -Werror all-warnings"
    command += " -Xcudafe --diag_suppress=177 --ptx -o /dev/null"
    head = "".join(f'#include "{path}"\n' for path in gpu)
    more = '#include "core/cta/cta_combine.h"\n#include "core/cta/cta_route.h"\n'
    for stub in lacks.values():
        more += f"__device__ {stub} {{ {'' if stub.startswith('void') else 'return 0;'} }}\n"
    on_gpu = 0
    for role in ROLES:
        status, said = compiled(command, head + role)
        on_gpu += status == 0
        if status:
            assert any(f'"{x}" is undefined' in said for x in lacks), said
            status, said = compiled(command, head + more + role)
            assert status == 0, said
    assert on_gpu >= 3  # operators whose every call the GPU has


@case
def the_tree_is_formatted():
    """`make format-check` says nothing. It needs the one version of clang-format that is pinned."""
    plain = {x: y for x, y in os.environ.items() if x not in ("MAKEFLAGS", "MAKELEVEL")}
    version = subprocess.run(["make", "-s", "format-version"], stdout=-1, stderr=-2, env=plain)
    if not os.path.exists(".git") or version.returncode:
        raise Skip("no git checkout, or no clang-format 14 here")
    run(["make", "-s", "format-check"], env=plain)


@case
def spills_end_the_build_of_cuda_13_alone():
    """With the compiler that figures were measured with a spill ends the build; what another makes it only slows. nvcc is played."""
    script = """d=$(mktemp -d) && mkdir $d/bin $d/include && : >$d/include/cuda_runtime.h || exit 1
cat >$d/bin/nvcc <<'END'
#!/bin/sh
case "$*" in
*--version*) echo "release $PLAYED, V$PLAYED"; exit ;;
*--list-gpu-code*) exit ;;
esac
[ -z "$SPILLS" ] || echo "ptxas : Registers are spilled to local memory"
while [ $# -gt 1 ]; do [ "$1" != -o ] || : >"$2"; shift; done
END
chmod +x $d/bin/nvcc; unset MAKEFLAGS MFLAGS MAKELEVEL; o=$d/build/kernels/ops/all_gather.cu.o
for played in '12.9 x' '13.0 x' '13.0 '; do
    PLAYED=${played% *} SPILLS=${played#* } make BUILD=$d/build CUDA_HOME=$d NVCC=$d/bin/nvcc $o \\
        >/dev/null 2>&1
    echo $played $? $(ls $o 2>/dev/null | wc -l); rm -f $o
done; rm -rf $d"""
    assert run(["sh", "-c", script]) == "12.9 x 0 1\n13.0 x 2 0\n13.0 0 1\n"


if __name__ == "__main__":
    main()
