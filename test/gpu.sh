#!/bin/sh
# test/gpu.sh [WEFT]  the PyTorch client's parity list, with two workers on one NVIDIA GPU
#
# WEFT is a static binary, built elsewhere (bin/weft). PYTHON (python3) needs torch 2.4; no network, no compiler; at most 4 minutes.
# WEFT_TEST_DEVICE=cpu tries this script where there is no GPU.
set -eu

fail() { echo "gpu.sh: $*" >&2; exit 1; }

cd "$(dirname "$0")/.."
weft=${1:-bin/weft}
[ -x "$weft" ] || fail "no program at $weft: run make build where there is Go, and copy bin/weft"
WEFT_BINARY=$(realpath "$weft")
python=${PYTHON:-python3}
export WEFT_BINARY WEFT_TEST_DEVICE="${WEFT_TEST_DEVICE:-cuda}"
"$WEFT_BINARY" --version
"$python" - <<'CHECK' || fail "$python, the value of PYTHON, cannot run the tests"
import os, sys, torch
print("torch", torch.__version__)
if os.environ["WEFT_TEST_DEVICE"] == "cuda":
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        sys.exit("torch 2.4 or later is needed")
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    print(torch.cuda.get_device_name())
CHECK

# Equal sums: no choice of algorithms by time, no scratch memory whose size decides one. Gloo's own choice of an interface
# needs a host name that resolves.
export CUBLAS_WORKSPACE_CONFIG=:4096:8 GLOO_SOCKET_IFNAME=lo PYTHONDONTWRITEBYTECODE=1
cd python
exec timeout 240 "$python" -W ignore -m unittest -v tests.test_parity tests.test_device
