# What the scripts beside this one share, each called as SCRIPT FOLDER [JOBS]: `here` (this folder), `place` (the
# runs' folder, made if need be), `jobs`, `swept` and `table`.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-2}

# table COMMAND OUT RECORDS...: tables and figures from committed records.
table() {
    local command=$1 out=$2
    shift 2
    (cd "$here/records" && python -m trace_bench.results "$command" "$@" --out "../$out")
}

# swept RECORDS SWEEP...: runs what is not finished of these sweeps, and collects the records of all.
swept() {
    local records=$1
    shift
    for sweep in "$@"; do
        python -m trace_bench.sweep "$here/../sweeps/$sweep.yaml" --jobs "$jobs" --fork
    done
    python -m trace_bench.results collect runs --out "$here/records/$records"
}
