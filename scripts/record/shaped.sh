#!/bin/bash
# shaped.sh [NAME...]  record training over a 1 Gbit/s link, and calibrate
#
# Two network namespaces joined by a veth pair, each direction limited by a token
# bucket.  NAME picks some of shaped-1mb, shaped-25mb, shaped-all, calibration.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
only=("$@")
traces=${TRACES:-$here/../../testdata/traces}
. "$here/lib.sh"

torch2=$here/../../tools/torch2
chroot=$("$torch2")
work=$(mktemp -d)
ns=weft$$
cleanup() {
    stop_ranks
    # A namespace takes its end of the veth pair, and with it the pair, along.
    ip netns del "${ns}a" 2>/dev/null || true
    ip netns del "${ns}b" 2>/dev/null || true
    stage_clean
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
stage_in

shape="rate 1gbit burst 128kb latency 50ms"
ip netns add "${ns}a"
ip netns add "${ns}b"
ip link add veth0 netns "${ns}a" type veth peer name veth0 netns "${ns}b"
for side in a b; do
    ip -n "$ns$side" link set lo up
    ip -n "$ns$side" link set veth0 up
    # shellcheck disable=SC2086
    tc -n "$ns$side" qdisc add dev veth0 root tbf $shape
done
ip -n "${ns}a" addr add 10.123.0.1/30 dev veth0
ip -n "${ns}b" addr add 10.123.0.2/30 dev veth0

port=29600
sides=(a b)
run() {
    # Each rank, with gloo's threads, has a core of its own: as if it had a
    # machine of its own, and steadier than letting the ranks push each other
    # around.
    local r
    port=$((port + 1))
    for r in 0 1; do
        # shellcheck disable=SC2086
        timeout "$limit" ip netns exec "$ns${sides[r]}" taskset -c "$r" "$torch2" $env_common \
            RANK=$r WORLD_SIZE=2 MASTER_ADDR=10.123.0.1 MASTER_PORT=$port GLOO_SOCKET_IFNAME=veth0 \
            python3 "$@" &
        pids+=($!)
    done
    wait_ranks
}

wanted() { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

record() {
    local name=$1; shift
    if ! wanted "$name"; then return; fi
    local attempt best= spread out
    # The machine is never quite alone: of a few attempts keep the steadiest.
    for attempt in 1 2 3 4; do
        run /srv/weft-record/train.py --model resnet18 --batch "$batch" --steps 8 "$@" \
            --note "link=veth, tbf $shape each way" --note "pinned=one core a rank" \
            --out /srv/weft-record/out/r
        out=$chroot/srv/weft-record/out/r
        spread=$(/usr/bin/python3 "$here/check.py" --spread-only "$out")
        echo "$name attempt $attempt: spread $spread%"
        if [ -z "$best" ] || awk "BEGIN{exit !($spread < $best)}"; then
            best=$spread
            mkdir -p "$traces/$name"
            cp "$out"/* "$traces/$name/"
        fi
        rm -rf "$out"
        if awk "BEGIN{exit !($best < 2.5)}"; then break; fi
    done
}

batch=10
# PyTorch 2.6 limits the first bucket to 1 MB only when no cap is given, so the
# middle one gives none: DDP's own default, 1 MB and then 25 MB.  1.13 always
# has that limit, hence --first-bucket-mb where there must be one bucket.
record shaped-1mb  --bucket-cap-mb 1
record shaped-25mb
record shaped-all  --bucket-cap-mb 1000 --first-bucket-mb 1000
if wanted calibration; then
    run /srv/weft-record/calibrate.py --model resnet18 --batch "$batch" \
        --note "link=veth, tbf $shape each way" --note "pinned=one core a rank" \
        --out /srv/weft-record/out/calibration.json
    mkdir -p "$traces"
    cp "$chroot/srv/weft-record/out/calibration.json" "$traces/"
fi
