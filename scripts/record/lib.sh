# Shared by record.sh and shaped.sh; sourced once $chroot and $here are set.

# glibc gives large blocks back to the kernel when they are freed and faults
# them in again a moment later, and the profiler's small blocks split the large
# ones it does keep: a step took up to 1.5 times as long here with the profiler
# on, and varied.  jemalloc, which PyTorch's own tuning guide suggests, keeps
# sizes apart, and is told never to give anything back.
env_common="PATH=/usr/bin:/bin HOME=/tmp LC_ALL=C.UTF-8 OMP_NUM_THREADS=1
    OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
    LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1"

# Longest a rank may run: a lost peer would otherwise leave gloo waiting for
# half an hour.
limit=${RECORD_LIMIT:-240}

pids=()
stop_ranks() {
    local p
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    pids=()
}

wait_ranks() {
    local p rc=0
    for p in "${pids[@]}"; do wait "$p" || rc=1; done
    pids=()
    return $rc
}

# Scripts and outputs live inside the Debian of tools/torch2, which only they write to.
stage_in() {
    rm -rf "$chroot/srv/weft-record"
    mkdir -p "$chroot/srv/weft-record/out"
    cp "$here"/*.py "$here/../../examples/models.py" "$chroot/srv/weft-record/"
}

stage_clean() { rm -rf "$chroot/srv/weft-record"; }
