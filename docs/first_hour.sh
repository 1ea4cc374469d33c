#!/usr/bin/env bash
# Runs the commands of first-hour.md one by one, but those for a GPU, and prints how long each
# took.
#
#     docs/first_hour.sh            in a fresh clone, as a reader would
#     docs/first_hour.sh --short    with few steps, in a folder that is removed; installs nothing
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD few=(cat)
if [[ ${1:-} == --short ]]; then
    few=(sed -E 's/steps=[0-9]+/steps=6/; s/(every|batches)=[0-9]+/\1=1/g; s/\(6, 64\)/(2, 16)/
        s/n_layer=4/n_layer=2/; s/1e-4, 1e-3, 1e-2/1e-3,/; s/100, 300, 900/3, 6/')
    cd "$(mktemp -d)"
    trap 'rm -rf "$PWD"' EXIT
    mkdir docs profiles runs
    cp "$root/profiles/sample.json" profiles
    "${few[@]}" "$root/docs/sweep.py" > docs/sweep.py
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    demo="$root/executor/workloads/bytes_lm.py:tiny --samples 1"
    make() { command make -f "$root/Makefile" -o .venv/.ready PY=python DEMO="$demo" "$@"; }
    python() {
        case "$3" in profile) set -- "$@" --samples 1;; tune) set -- "$@" --samples 1 --devices 1;; esac
        command python "$@"
    }
    source() { :; }
fi
[[ -e my.py ]] || sed -n '/^```python$/,/^```$/{/^```/!p}' "$root/README.md" | "${few[@]}" > my.py

took=()
while read -r command; do
    echo "+ $command"
    start=${EPOCHREALTIME/./}
    eval "$command" < /dev/null
    tenths=$(((${EPOCHREALTIME/./} - start) / 100000))
    took+=("$(printf '%4d.%d s   %s' $((tenths / 10)) $((tenths % 10)) "$command")")
done < <(grep -oP '^    \K(make|source|python) (?!.*--device cuda).*' "$root/docs/first-hour.md")
printf '%s\n' "" "${took[@]}"
