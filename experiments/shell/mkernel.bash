# Completion of mkernel's command line in bash (and in zsh, after `autoload -U bashcompinit && bashcompinit`). It asks the
# command itself, so that it knows what this build knows: `mkernel --help` for commands and operators, `mkernel COMMAND --help` for options.
# It asks the mkernel of PATH, whatever the line begins with: TAB behind ./mkernel runs nothing of the current folder.
_mkernel() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} help below=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "$(mkernel --help 2>/dev/null | sed -n '/^usage/,/^OP:/s/^  \([a-z][a-z]*\) .*/\1/p') --help --version" -- "$word"))
        return
    fi
    # an option's words (host|cuda) stand behind it in the help; = is a word of its own
    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}
    [[ $word == = ]] && word=
    case $command in
    bench) # what is below an operator has options of its own
        below=$(mkernel bench --help 2>/dev/null | sed -n 's/.*(or: bench \([a-z|]*\) .*/\1/p')
        [[ $below && ${COMP_WORDS[2]} =~ ^($below)$ ]] && help=$(mkernel bench "${COMP_WORDS[2]}" --help 2>/dev/null) ;;
    tune) # simulated plans have options of their own
        [[ " ${COMP_WORDS[*]} " =~ " --exec "(= )?"sim " ]] && help=$(mkernel tune "${COMP_WORDS[2]}" --exec sim --help 2>/dev/null) ;;
    trace)
        ((COMP_CWORD > 2)) && [[ ${COMP_WORDS[2]} == [a-z]* ]] && help=$(mkernel trace "${COMP_WORDS[2]}" --help 2>/dev/null) ;;
    esac
    # an operator's own options, where one is named
    [[ $help ]] || [[ ! $command =~ ^(run|bench|sim|tune)$ || ${COMP_WORDS[2]} != [a-z]* ]] || help=$(mkernel "$command" "${COMP_WORDS[2]}" --help 2>/dev/null)
    [[ $help ]] || help=$(mkernel "$command" --help 2>/dev/null)
    if [[ $before == --* ]]; then
        local value
        value=$(sed -n "s/^  $before \([^ ]*\).*/\1/p" <<<"$help" | head -n 1)
        [[ $command == tune && $before == --exec ]] && value="$value|sim"
        if [[ $value =~ ^[a-z0-9_]+(\|[a-z0-9_]+)+$ ]]; then
            COMPREPLY=($(compgen -W "${value//|/ }" -- "$word"))
            return
        fi
        case $value in
        *FILE* | *PICTURE*) COMPREPLY=($(compgen -f -- "$word")); return ;;
        ?*) return ;; # a number, or words that only the user knows
        esac
    fi
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$(grep -oE '^  --[a-z-]+' <<<"$help")" -- "$word"))
    elif ((COMP_CWORD == 2)) && [[ $command =~ ^(run|bench|sim|tune)$ ]]; then
        local more=
        [[ $command == bench ]] && more=${below//|/ }
        COMPREPLY=($(compgen -W "$(mkernel --help 2>/dev/null | sed -n '/^OP:/,/^$/s/^  \([a-z_]*\) .*/\1/p') $more" -- "$word"))
    elif ((COMP_CWORD == 2)) && [[ $command == trace ]]; then
        COMPREPLY=($(compgen -W "$(sed -n 's/^  mkernel trace \([a-z]*\) [A-Z].*  .*/\1/p' <<<"$help")" -- "$word"))
    elif ((COMP_CWORD == 3)) && [[ $command == results ]]; then
        COMPREPLY=($(compgen -W "$(sed -n 's/^usage: mkernel results FILE \([a-z|]*\) .*/\1/p' <<<"$help" | tr '|' ' ')" -- "$word"))
    elif ((COMP_CWORD == 4)) && [[ $command == results && $before == plot ]]; then
        COMPREPLY=($(compgen -W "$(sed -n 's/.*KIND: \([a-z, ]*\);.*/\1/p' <<<"$help" | tr -d ,)" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}
complete -o filenames -F _mkernel mkernel
