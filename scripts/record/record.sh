#!/bin/bash
# record.sh [NAME...]  record the loopback traces in testdata/traces
#
# Two ranks on this machine.  NAME picks some of the recordings, e.g.
# gpt-gloo-torch2.6; without one all are made.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
traces=${TRACES:-$here/../../testdata/traces}
python113=${PYTHON113:-/usr/bin/python3}
. "$here/lib.sh"

torch2=$here/../../tools/torch2
chroot=$("$torch2")
work=$(mktemp -d)
trap 'stop_ranks; stage_clean; rm -rf "$work"' EXIT
stage_in
port=29500

record() {
    local name=$1 torch=$2; shift 2
    if [ ${#only[@]} -gt 0 ] && [[ " ${only[*]} " != *" $name "* ]]; then return; fi
    local attempt best= spread out r
    # The machine is never quite alone: of a few attempts keep the steadiest.
    for attempt in 1 2 3; do
        # A port of its own each time, the last one may linger in TIME_WAIT.
        port=$((port + 1))
        for r in 0 1; do
            local run=(RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port GLOO_SOCKET_IFNAME=lo)
            if [ "$torch" = 2.6 ]; then
                timeout "$limit" "$torch2" $env_common "${run[@]}" \
                    python3 /srv/weft-record/train.py "$@" --out "/srv/weft-record/out/$attempt" &
            else
                timeout "$limit" env -i $env_common "${run[@]}" \
                    "$python113" "$here/train.py" "$@" --out "$work/$attempt" &
            fi
            pids+=($!)
        done
        wait_ranks
        out=$work/$attempt
        if [ "$torch" = 2.6 ]; then rm -rf "$out"; mv "$chroot/srv/weft-record/out/$attempt" "$out"; fi
        spread=$(/usr/bin/python3 "$here/check.py" --spread-only "$out")
        echo "$name attempt $attempt: spread $spread%"
        if [ -z "$best" ] || awk "BEGIN{exit !($spread < $best)}"; then
            best=$spread
            mkdir -p "$traces/$name"
            cp "$out"/* "$traces/$name/"
        fi
        rm -rf "$out"
        if awk "BEGIN{exit !($best < 3)}"; then break; fi
    done
}

only=("$@")
record resnet18-gloo-torch2.6    2.6  --model resnet18 --batch 10 --steps 5
record gpt-gloo-torch2.6         2.6  --model gpt --batch 2 --steps 4
record resnet18-gloo-torch1.13   1.13 --model resnet18 --batch 10 --steps 5
record gpt-gloo-torch1.13        1.13 --model gpt --batch 2 --steps 5
record gpt-accum2-gloo-torch2.6  2.6  --model gpt --layers 2 --batch 2 --accumulate 2 --steps 4
