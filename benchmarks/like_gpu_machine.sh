#!/usr/bin/env bash
# Rehearse first_minutes.py without a GPU, on what a machine with one was seen to have: Python 3.12, NumPy 2.5, CUDA 13.0
# as PyTorch 2.11 brings it, JAX; the source tree without .git; neither librosa nor JupyterLab.
#
#     PYTHON=python3.12 benchmarks/like_gpu_machine.sh
#
# All kernels compile; every stage runs on the stand-in for a driver (tests/driver), where kernels compute nothing, so that
# what is compared there is WRONG; then from PTX on the CPU, where it is right. compute-sanitizer and ncu are
# scripts that write down how they were called, and run the program. Everything is in build/like_gpu, or in WHERE.
set -euo pipefail
cd "$(dirname "$0")/.."
where=$(mkdir -p "${WHERE:=build/like_gpu}" && cd "$WHERE" && pwd)
tree=$where/tree python=$where/env/bin/python
minutes=${MINUTES:-20} status=0

if [ ! -e "$where/env/.installed" ]; then
    "${PYTHON:-python3.12}" -m venv "$where/env"
    "$python" -m pip install --quiet "numpy==2.5.2" "torch==2.11.0" jax numba "numba-cuda[cu13]" nvidia-cuda-nvdisasm \
        scipy pandas matplotlib tqdm threadpoolctl pytest hypothesis
    touch "$where/env/.installed"
fi

# What travels: what git knows, or would.
commit=$(git rev-parse HEAD)
rm -rf "$tree" "$where/out" "$where/calls" "$where/cache"
mkdir -p "$tree" "$where/bin" "$where/driver"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' path; do
    [ ! -e "$path" ] || printf '%s\0' "$path"
done | tar -c --null -T - | tar -x -C "$tree"

for name in compute-sanitizer ncu; do
    cat > "$where/bin/$name" <<END
#!/usr/bin/env bash
printf '%s' "$name" >> "$where/calls"
until [ -x "\$1" ]; do printf ' %s' "\$1" >> "$where/calls"; shift; done
printf ' PYTHON -c ... %s\n' "\${*:4}" >> "$where/calls"
exec "\$@"
END
    chmod +x "$where/bin/$name"
done

cd "$tree"
export PATH="$where/bin:$PATH" BPPSA_NB_CACHE="$where/cache" PYTHONPATH="$tree:$tree/warpwatch/src" PYTHONUNBUFFERED=1
# PyTorch looks for GPUs by a runtime that the stand-in is too small for.
export CUDA_VISIBLE_DEVICES= PYTORCH_NVML_BASED_CUDA_CHECK=1
say() { printf '\n=== %s, %s s\n' "$*" "$SECONDS"; }
run() { "$python" benchmarks/first_minutes.py --out "$where/out" --commit "$commit" "$@"; }

say "every kernel, by CUDA 13"
"$python" -m pytest -q -p no:cacheprovider tests/test_machine_code.py || status=$?

say "the stand-in: all parts"
include=$("$python" -c 'import nvidia.cu13, pathlib; print(pathlib.Path(nvidia.cu13.__path__[0]) / "include")')
cc -shared -fPIC "-I$include" tests/driver/driver.c -o "$where/driver/libcuda.so.1"
on_driver() { LD_LIBRARY_PATH="$where/driver" DRIVER_LOG="$where/driver/log" "$@"; }
on_driver run --minutes "$minutes"
for stage in counters speed layers grid sizes; do
    say "the stand-in: $stage"
    on_driver run "$stage" --minutes 1
done

say "from PTX on the CPU: all parts, at tiny sizes"
BPPSA_NB_CUDA=ptx run --minutes "$minutes"

say "what was called"
sort "$where/calls" | uniq -c
exit $status
