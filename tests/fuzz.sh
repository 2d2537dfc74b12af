#!/bin/sh
# Runs one libFuzzer target for FUZZ_SECONDS (default 8) from its seeds in tests/corpus, and speaks cmocka's lines so that
# tests/run.sh counts it. Usage: fuzz.sh PROGRAM
name=$(basename "$1")
seeds=tests/corpus/$name
work=$1.corpus
mkdir -p "$work"
[ -d "$seeds" ] || seeds=
echo "[ RUN      ] $name"
# shellcheck disable=SC2086
if "$1" -max_total_time="${FUZZ_SECONDS:-8}" -timeout=5 -rss_limit_mb=2048 -artifact_prefix="$1." "$work" $seeds 2>&1; then
    echo "[       OK ] $name"
else
    echo "[  FAILED  ] $name"
    exit 1
fi
