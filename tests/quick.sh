#!/usr/bin/env bash
# Which tests a change touches, the nearest first, as many as fit into a minute. Usage: quick.sh BUILD [FILE...]
# Prints the programs, and on stderr what it left out. FILE: what has changed; default: what differs from SINCE (default: where
# this branch left main; on main without a change, the last commit), files that git does not know included.
# PROGRAMS: those of `make check`; default: one of each test's source, whether this machine can build it or not.
# Ends with status 3 where a changed file touches no program (but tests/test_house.py, which reads every source): nothing is known of it.
#
# A program is touched where
#   0  its source has changed; tests/test_house.py by every source
#   1  it includes a file of tests/ that has changed; its source includes the header of what has changed (of x.c: x.h, else those
#      of its folder that x.c includes), names the file or, of data in tests/, its folder; or the program is called after the file
#   2  it is called after the file's folder (kernels/, sim/hopper/: test_hopper_..., tracer/: test_trace_...,
#      experiments/python/: test_python_...)
#   3  it runs the subcommand that lies there (experiments/NAME, tui, tracer: trace)
#   4  its object includes that header by way of another (BUILD/tests/NAME.d; where there is none the compiler says it)
#   5  it runs the command or the Python package, and the file is part of what all of these are made of
# A file that a source embeds (.incbin) touches what that source touches.
# Times are those of its last run (tests/run.sh). Where there was none: 5 s, of shell and Python 60 s.
set -eu
build=$1
shift
jobs=$(nproc)
[ "$jobs" -le 4 ] || jobs=4

changed=("$@")
if [ $# = 0 ]; then
    since=${SINCE:-$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)}
    list() { { git diff --name-only "$1"; git ls-files -o --exclude-standard; } | sort -u; }
    mapfile -t changed < <(list "$since")
    [ ${#changed[@]} -gt 0 ] || mapfile -t changed < <(list HEAD~1)
fi
if [ -z "${PROGRAMS:-}" ]; then
    PROGRAMS=$(for source in tests/test_* tests/fuzz_*; do
        name=$(basename "${source%.*}")
        case $source in *fuzz_*) echo "$build/fuzz/$name.sh" ;; *.c) echo "$build/tests/$name" ;; *) echo "$build/tests/$name.sh" ;; esac
    done)
fi

for source in tests/test_*.c tests/fuzz_*.c; do
    d=$build/tests/$(basename "$source" .c).d
    [ -e "$d" ] || ! mkdir -p "$build/tests" || ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -I. -MM "$source" -MF "$d" 2>/dev/null || true
done
status=0
chosen=$(printf '%s\n' "${changed[@]}" | awk -v build="$build" -v programs="$PROGRAMS" -v embedding="$(git grep -l '\.incbin' -- '*.c' | xargs)" '
    function text_of(path,   line, text) {
        text = ""
        while ((getline line < path) > 0) { sub(/\\$/, "", line); text = text line "\n" }
        close(path)
        return text
    }
    function last_of(path) { sub(/.*\//, "", path); return path }
    function names(text, word) { gsub(/[.+]/, "\\\\&", word); return text ~ ("(^|[^A-Za-z0-9_.-])" word "([^A-Za-z0-9_-]|$)") }
    # What file number f of the change counts as: its header, folder and subcommand.
    function about(f, path,   own, folder, last, lines, part, n, i) {
        folder = path; sub(/\/[^\/]*$/, "", folder)
        last = last_of(folder)
        if (path ~ /^(core|sim|tracer|backends|kernels|experiments\/(common|job|ops|run|main))/) everywhere[f]
        if (path ~ /^experiments\/python\//) called[f, "test_python_"]
        if (path ~ /^tracer\//) called[f, "test_trace_"]
        if (path ~ /^(kernels|sim\/hopper)\//) called[f, "test_hopper_"]
        if (path !~ /\.(c|h|cu|cuh|py)$/) return
        stem[f] = last_of(path); sub(/\..*/, "", stem[f])
        if (last !~ /^(tests|helpers|core|common|job|ops)$/) called[f, "test_" last "_"]
        if (path ~ /^experiments\/[a-z]+\/[^\/]*$/ && last !~ /^(common|job|ops|baselines|python)$/) runs[f, last]
        if (path ~ /^tui/) runs[f, "tui"]
        if (path ~ /^tracer/) runs[f, "trace"]
        if (path ~ /h$/) { header[f, path]; return }
        if (path ~ /^tests\/test_/) return # what it includes is not its own
        own = path; sub(/\.[a-z]*$/, ".h", own)
        if (text_of(own) != "") { header[f, own]; return }
        n = split(text_of(path), lines, "\n")
        for (i = 1; i <= n; i++)
            if (index(lines[i], "#include \"" folder "/") == 1) { split(lines[i], part, "\""); header[f, part[2]] }
    }
    function level_of(f, p,   path, folder, x, part, far) {
        path = folder = file[f]
        sub(/[^\/]*$/, "", folder)
        if (path == source[p]) return 0
        if (name[p] == "test_house") return path ~ /\.(c|h|cu|cuh)$/ ? 0 : 9
        if (path ~ /^tests\// && index(included[p], " " path " ")) return 1
        if (index(text[p], "\"" path "\"") || (f in stem && index(name[p] "_", "_" stem[f] "_"))) return 1
        if (path !~ /\.(c|h|cu|cuh)$/ && names(text[p], last_of(path))) return 1
        if (folder ~ /^tests\/./ && path !~ /\.(c|h|cu|cuh)$/ && (index(text[p], folder) || folder == "tests/corpus/" name[p] "/")) return 1
        far = 9
        for (x in header) {
            split(x, part, SUBSEP)
            if (part[1] == f && index(text[p], "\"" part[2] "\"")) return 1
            if (part[1] == f && index(included[p], " " part[2] " ")) far = 4
        }
        for (x in called) { split(x, part, SUBSEP); if (part[1] == f && index(name[p] "_", part[2]) == 1) return 2 }
        if (command[p])
            for (x in runs) { split(x, part, SUBSEP); if (part[1] == f && (text[p] ~ ("\"" part[2] "[ \"]") || index(text[p], "mkernel " part[2] " "))) return 3 }
        return far == 4 ? 4 : f in everywhere && command[p] ? 5 : 9
    }
    { file[++files] = $0 }
    END {
        n = split(programs, program, /[ \n]+/)
        for (p = 1; p <= n; p++) {
            name[p] = last_of(program[p]); sub(/\.sh$/, "", name[p])
            source[p] = "tests/" name[p] (program[p] !~ /\.sh$/ || name[p] ~ /^fuzz_/ ? ".c" : name[p] ~ /^test_(python_|house)/ ? ".py" : ".sh")
            text[p] = text_of(source[p])
            included[p] = " " text_of(build "/tests/" name[p] ".d") " "; gsub(/[ \n]+/, " ", included[p])
            if (source[p] ~ /py$/) included[p] = " tests/helpers/python.sh tests/helpers/cases.py "
            command[p] = source[p] !~ /c$/ || index(included[p], " tests/helpers/command.h ")
            level[p] = 9
        }
        for (f = 1; f <= files; f++) {
            about(f, file[f])
            m = split(embedding, by, " ")
            for (i = 1; i <= m; i++)
                if (file[f] !~ /\.(c|h|md)$/ && names(text_of(by[i]), last_of(file[f]))) about(f, by[i])
            known = 0
            for (p = 1; p <= n; p++) {
                l = level_of(f, p)
                if (l < 9 && (name[p] != "test_house" || file[f] == source[p])) known = 1
                if (l < level[p]) level[p] = l
            }
            if (!known) print 8, 0, file[f]
        }
        for (p = 1; p <= n; p++) {
            if (level[p] == 9) continue
            result = text_of(program[p] ".result")
            split(result, part, /[ \n]/)
            print level[p], result != "" ? part[3] : source[p] ~ /c$/ ? 5000 : 60000, program[p]
        }
    }' | sort -k1,1n -k2,2n | awk -v jobs="$jobs" -v files="${#changed[@]}" '
    $1 == 8 { unknown[++unknowns] = $3; next }
    {
        all++
        # 40 s for each core, so that the last of them ends within a minute
        if (sum + $2 <= 40000 * jobs || $1 == 0) { sum += $2; n++; print $3 }
        else { sub(/.*\//, "", $3); left = left " " $3 }
    }
    END {
        printf "quick: %d changed files touch %d test programs; %d of them run, in about %.0f s\n", files, all, n, sum / jobs / 1000 >"/dev/stderr"
        if (left) print "quick: left to make check:" left >"/dev/stderr"
        for (i = 1; i <= unknowns; i++) print "quick: nothing is known of " unknown[i] ": make check" >"/dev/stderr"
        exit unknowns ? 3 : 0
    }') || status=$?
[ -z "$chosen" ] || printf '%s\n' "$chosen"
exit "$status"
