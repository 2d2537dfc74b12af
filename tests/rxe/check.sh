# Checks that are written in shell and counted by tests/run.sh as cmocka's are; to be sourced by bash.
#   check NAME        runs check_NAME, its output into a file; status 0 is right, 77 skipped (the last line it wrote is the reason)
#   check_skip_all REASON NAME...
#   check_stopped     for a trap: the check that is under way failed, since the script was told to end
#   check_end         the script's exit status
# What a trap writes goes to $check_out: it may run inside a check.
check_failed=0
check_now=
exec {check_out}>&1

check() {
    local log=${vm_work:?}/$1.log status
    check_now=$1
    echo "[ RUN      ] $1"
    SECONDS=0
    "check_$1" >"$log" 2>&1
    status=$?
    check_now=
    case $status in
    0) grep '^figure: ' "$log"; echo "[       OK ] $1 ($SECONDS s)" ;;
    77) tail -n 1 "$log"; echo "[  SKIPPED ] $1" ;;
    *) sed 's/^\[/ [/' "$log"; echo "[  FAILED  ] $1"; check_failed=1; return 1 ;;
    esac
}

check_skip_all() {
    local reason=$1 name
    shift
    for name; do printf '[ RUN      ] %s\n%s\n[  SKIPPED ] %s\n' "$name" "$reason" "$name"; done
}

check_stopped() {
    [ -n "$check_now" ] || return
    sed 's/^\[/ [/' "$vm_work/$check_now.log" >&"$check_out"
    printf 'told to end after %d s of this check\n[  FAILED  ] %s\n' "$SECONDS" "$check_now" >&"$check_out"
}

check_end() {
    return "$check_failed"
}
