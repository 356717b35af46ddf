# What the scripts beside this one share, each called as SCRIPT FOLDER [JOBS]: `here` (this folder), `place` (the
# runs' folder, made if need be), `jobs`, and `table`.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-2}

# table COMMAND OUT RECORDS...: tables and figures from committed records.
table() {
    local command=$1 out=$2
    shift 2
    (cd "$here/records" && python -m trace_bench.results "$command" "$@" --out "../$out")
}
