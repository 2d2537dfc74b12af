#!/usr/bin/env bash
# Which test programs a change touches, the nearest first, as many as fit into a minute. Usage: quick.sh BUILD [FILE...]
# Prints the programs, and on stderr what it left out. FILE: what has changed; default: what differs from SINCE (default: where
# this branch left main; on main without a change, the last commit), files that git does not know included.
#
# A program is touched where
#   0  its source has changed; tests/test_house.c by every source
#   1  it includes a file of tests/ that has changed; its source includes the header of what has changed (of x.c: x.h, else those
#      of its folder that x.c includes) or names the file; or the program is called after the file
#   2  it is called after the file's folder (kernels/, sim/hopper/: test_hopper_...)
#   3  it runs the subcommand that lies there (experiments/NAME, tui, tracer: trace)
#   4  its object includes that header by way of another (BUILD/tests/NAME.d; where there is none the compiler says it)
# Times are those of its last run (tests/run.sh), 5 s where there was none.
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

for source in tests/test_*.c; do
    d=$build/tests/$(basename "$source" .c).d
    [ -e "$d" ] || ! mkdir -p "$build/tests" || ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -I. -MM "$source" -MF "$d" 2>/dev/null || true
done
printf '%s\n' "${changed[@]}" | awk -v build="$build" -v jobs="$jobs" '
    function text_of(path,   line, text) {
        text = ""
        while ((getline line < path) > 0) { sub(/\\$/, "", line); text = text line "\n" }
        close(path)
        return text
    }
    { # a changed file: its header, folder and subcommand
        file[++files] = $0
        if ($0 !~ /\.(c|h|cu|cuh)$/) next
        sources++
        stem[files] = $0; sub(/.*\//, "", stem[files]); sub(/\..*/, "", stem[files])
        folder = $0; sub(/\/[^\/]*$/, "", folder)
        last = folder; sub(/.*\//, "", last)
        if (last !~ /^(tests|helpers|core|common|job|ops)$/) called["test_" last "_"]
        if (folder ~ /^experiments\// && last !~ /^(common|job|ops|baselines)$/) runs[last]
        if (folder ~ /^tui/) runs["tui"]
        if (folder ~ /^tracer/) runs["trace"]
        if ($0 ~ /^(kernels|sim\/hopper)\//) called["test_hopper_"]
        if ($0 ~ /h$/) { header[$0]; next }
        own = $0; sub(/\.[a-z]*$/, ".h", own)
        if (text_of(own) != "") { header[own]; next }
        n = split(text_of($0), lines, "\n")
        for (i = 1; i <= n; i++)
            if (index(lines[i], "#include \"" folder "/") == 1) { split(lines[i], part, "\""); header[part[2]] }
    }
    function level_of(name, source, text, included,   i, x) {
        if (name == "test_house" && sources) return 0
        for (i = 1; i <= files; i++)
            if (file[i] == source) return 0
        for (i = 1; i <= files; i++)
            if (file[i] ~ /^tests\// && index(included, " " file[i] " ")) return 1
        for (i = 1; i <= files; i++)
            if (index(text, "\"" file[i] "\"") || (i in stem && index(name "_", "_" stem[i] "_"))) return 1
        for (x in header) if (index(text, "\"" x "\"")) return 1
        for (x in called) if (index(name "_", x) == 1) return 2
        if (index(included, " tests/helpers/command.h "))
            for (x in runs) if (text ~ "\"" x "[ \"]" || index(text, "mkernel " x " ")) return 3
        for (x in header) if (index(included, " " x " ")) return 4
        return -1
    }
    END {
        while (("ls tests/test_*.c" | getline source) > 0) {
            name = source; gsub(/.*\/|\.c$/, "", name)
            included = " " text_of(build "/tests/" name ".d") " "; gsub(/[ \n]+/, " ", included)
            level = level_of(name, source, text_of(source), included)
            if (level < 0) continue
            result = text_of(build "/tests/" name ".result")
            split(result, part, /[ \n]/)
            print level, result == "" ? 5000 : part[3], name
        }
        printf "files %d\n", files
    }' | sort -k1,1n -k2,2n | awk -v build="$build" -v jobs="$jobs" '
    $1 == "files" { files = $2; next }
    {
        all++
        # 40 s for each core, so that the last of them ends within a minute
        if (sum + $2 <= 40000 * jobs || $1 == 0) { sum += $2; n++; print build "/tests/" $3 }
        else left = left " " $3
    }
    END {
        printf "quick: %d changed files touch %d test programs; %d of them run, in about %.0f s\n", files, all, n, sum / jobs / 1000 >"/dev/stderr"
        if (left) print "quick: left to make check:" left >"/dev/stderr"
    }'
