#!/bin/sh
# The man page, made of what the command says of itself and of docs/ENVIRONMENT.md, so that it cannot say anything else.
# Usage: man.sh BUILD/mkernel VERSION
set -eu
mkernel=$1
say() { printf '%s\n' "$1"; } # echo would read escapes
text() { # in a manual, \ and a . or ' that begins a line mean something
    sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
}
say '.TH MKERNEL 1 "" "mkernel '"$2"'" "User Commands"'
say '.SH NAME'
say 'mkernel \- GPU kernels that compute and communicate at once, and experiments with them'
say '.SH SYNOPSIS'
say '.B mkernel'
say '.I COMMAND'
say '[\fIARGUMENTS\fR]'
say '.SH DESCRIPTION'
say '.nf'
"$mkernel" --help | text
say '.fi'
say '.SH COMMANDS'
commands=$("$mkernel" --help | sed -n '/^usage/,/^OP:/s/^  \([a-z][a-z]*\) .*/\1/p')
for command in $commands; do
    say '.SS mkernel '"$command"''
    say '.nf'
    "$mkernel" "$command" --help | text
    say '.fi'
done
for bench in $("$mkernel" bench --help | sed -n 's/.*(or: bench \([a-z|]*\) .*/\1/p' | tr '|' ' '); do
    say '.SS mkernel bench '"$bench"''
    say '.nf'
    "$mkernel" bench $bench --help | text
    say '.fi'
done
say '.SH ENVIRONMENT'
sed -n 's/^| \(`.*\) | \(.*\) |$/\1\t\2/p' "${0%/*}/../../docs/ENVIRONMENT.md" | tr -d '`' | text |
    sed -e 's/\[\([A-Z._\\-]*md\)\](\([^)]*\))/docs\/\1/g' -e 's/^\([^	]*\)	/.TP\n.B \1\n/'
say '.SH EXIT STATUS'
say '0: done (and right, with \-\-check). 1: wrong results, or results slower than expected. 2: unusable arguments or shape, and nothing was started.'
say '3: something failed at run time. One sentence on standard error says which.'
say '.SH SEE ALSO'
say 'The documents in docs/: GUIDE.md, EXPERIMENTS.md, DESIGN.md.'
