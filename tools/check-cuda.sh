#!/usr/bin/env bash
# Compiles the CUDA build, kernels included, on a machine that has neither a GPU nor CUDA. Nothing is run.
# Compiler and headers come from PyPI, into target/cuda-venv; the first run takes several minutes.
# Arguments go to cargo: `tools/check-cuda.sh -p draftgauge-python` checks another crate.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/cuda-venv
if [ ! -e "$venv/.ready" ]; then
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt nvidia-nvvm
    touch "$venv/.ready"
fi

packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
CUDA_HOME=$packages/nvidia/cu13
[ -x "$CUDA_HOME/bin/nvcc" ] || { echo "check-cuda: no nvcc in $CUDA_HOME: the packages have moved" >&2; exit 1; }
export CUDA_HOME CUDA_PATH=$CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
# Without a GPU to ask, the architecture and the CUDA release are named: Ampere, the oldest with bf16, and 13.2.
export CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=13020

if [ $# -eq 0 ]; then set -- -p draftgauge-candle; fi
exec cargo check --locked --features cuda "$@"
