# What the experiments' scripts share. Each is `results/NAME/run.sh [FOLDER [JOBS]]`: with a folder it first makes the
# runs there (what is finished is not made again) and collects their records; without one it makes the tables and
# figures from the committed records. A script says what its `runs` and its `tables` are and ends with `all "$@"`.
export PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"  # common.py
here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)

all() {
    if [ $# -gt 0 ]; then
        mkdir -p "$1" && cd "$1"
        jobs=${2:-2}
        runs
    fi
    cd "$here"
    tables
}

# swept SWEEP...: the runs of these sweep files of the experiment.
swept() {
    for sweep in "$@"; do
        python -m trace_bench.sweep "$here/$sweep.yaml" --jobs "$jobs"
    done
}

# collect RECORDS [FILTER...]: the records of all runs.
collect() {
    python -m trace_bench.results collect runs "${@:2}" --out "$here/$1"
}

# table OUT RECORDS...: tables and figures from records.
table() {
    python -m trace_bench.results tables "${@:2}" --out "$1"
}
