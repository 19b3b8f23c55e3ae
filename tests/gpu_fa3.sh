#!/usr/bin/env bash
# What FlashAttention 3 should show on one H100 or H200, in less than eight minutes, and a short table last.
#
#   tests/gpu_fa3.sh [GROUP...]     without groups: together bench
#
# together: side by side the stand-in's tests against the real kernels, campaigns of every runner that sglang captures
# over this backend, and drawn cases on both engines. bench: speed beside the other backends, nothing else running.
# On a host without a package index first: eval "$(python3 -m runners unpack BUNDLE | tail -1)", of a bundle made with
# --fa3. The emulated engine needs a NumPy below 2.4.
#
# PYTHON: the interpreter (default: .venv/bin/python if it is there, else python3). OUT: a folder for logs and records
# (out/gpu-fa3). RUNNERS: in one word each (all that there are). SECONDS_EACH: of a campaign (210); on a host that has
# compiled nothing yet, opening the first session takes 100 of them and more. STANDBYS: sessions that each opens ahead
# (1). DRAWN: cases of each runner on both engines (50; 0: none). SEED: of all (0).
# Exit code: 1 if a part ended with an error of the harness or out of time; what oracles found is in the table.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 3

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
OUT=${OUT:-out/gpu-fa3}
SECONDS_EACH=${SECONDS_EACH:-210}
DRAWN=${DRAWN:-50}
STANDBYS=${STANDBYS:-1}
SEED=${SEED:-0}
RELEASES=(0.5.13 0.5.15.post1)
read -ra RUNNERS <<<"${RUNNERS:-draft decode verify multi_layer verify_eager}"

mkdir -p "$OUT"
declare -A jobs begun
failed=0
rows=()

# begin NAME SECONDS COMMAND...: in the background, its output in a log.
begin() {
  local name=$1 limit=$2
  shift 2
  printf '%s: %s\n' "$name" "$*"
  # What a shell starts in the background ignores INT, by which a campaign would end with what it has.
  timeout -s INT -k 15 "$limit" env --default-signal=INT "$@" >"$OUT/$name.log" 2>&1 &
  jobs[$name]=$!
  begun[$name]=$(date +%s)
}

# finish FIGURE: wait for all that were begun; FIGURE is a pattern whose last match in a log is shown.
finish() {
  local name code
  while [ ${#jobs[@]} -gt 0 ]; do
    for name in "${!jobs[@]}"; do
      kill -0 "${jobs[$name]}" 2>/dev/null && continue
      wait "${jobs[$name]}"
      code=$?
      # 1 and 2 are answers: something failed, nothing could be judged.
      case $code in 0 | 1 | 2) ;; *) failed=1 ;; esac
      rows+=("$(printf '%-30s %4s %5ss  %s' "$name" "$code" "$(($(date +%s) - begun[$name]))" \
        "$(grep -oE "$1" "$OUT/$name.log" | tail -2 | paste -sd ' ')")")
      unset "jobs[$name]"
    done
    sleep 1
  done
}

together() {
  local release runner base minutes
  minutes=$(awk "BEGIN { print $SECONDS_EACH / 60 }")
  # Every step is also compared with float64.
  export EAGLEEYE_REFERENCE=1
  # The tests import the kernels themselves; of a bundle they lie in its base.
  base=$("$PYTHON" -c 'from runners.targets.environments import targets_directory; print(targets_directory() / "base")')
  begin tests 200 env PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$base" "$PYTHON" -m pytest -m cuda tests/runners/engines/test_fa3_standin.py \
    -n 0 --target 0.5.13/emulated,0.5.13/cuda -rfs -p no:cacheprovider
  for release in "${RELEASES[@]}"; do
    for runner in "${RUNNERS[@]}"; do
      begin "campaign-$release-$runner" $((SECONDS_EACH + 90)) "$PYTHON" -m fuzz run --target "$release/cuda" \
        --runner "$runner" --backend fa3 --minutes "$minutes" --seed "$SEED" --standbys "$STANDBYS" --confirm 3 --shrink-runs 30 \
        --shrink-seconds 10 --json "$OUT/$release-$runner.json" --out "$OUT/$release-$runner"
    done
  done
  for runner in "${RUNNERS[@]}"; do
    [ "$DRAWN" -gt 0 ] && [ "$runner" != verify_eager ] || continue
    begin "fidelity-0.5.13-$runner" 300 "$PYTHON" -m repro fidelity --targets 0.5.13/cuda 0.5.13/emulated --runner "$runner" \
      --backend fa3 --drawn "$DRAWN" --seed "$SEED" --json "$OUT/fidelity-$runner.json" --out "$OUT/fidelity-$runner"
  done
  finish '[0-9]+ passed.*|[0-9]+ failed.*|[0-9,]+ cases \([0-9,]+ judged\) on [0-9]+ setups|[0-9]+ cases? compared, [0-9]+ disagreements?|error: .*'
}

bench() {
  local backend
  unset EAGLEEYE_REFERENCE
  for backend in fa3 triton flashinfer; do
    # One on each engine: the emulated one keeps the GPU free.
    begin "bench-cuda-$backend" 60 "$PYTHON" -m fuzz bench --target 0.5.13/cuda --backend "$backend" --mix small --cases 400 \
      --out "$OUT/bench-cuda-$backend"
    begin "bench-emulated-$backend" 60 "$PYTHON" -m fuzz bench --target 0.5.13/emulated --backend "$backend" --mix small \
      --cases 30 --out "$OUT/bench-emulated-$backend"
    finish 'small setup: [0-9.]+ cases/s|bare / whole = [0-9.]+|error: .*'
  done
}

[ $# -gt 0 ] || set -- together bench
for group in "$@"; do
  case $group in
    together | bench) "$group" ;;
    *) echo "gpu_fa3: there is no group $group; there are together, bench" >&2 && exit 3 ;;
  esac
done
echo
printf '%-30s %4s %6s  %s\n' part exit time figure
printf '%s\n' "${rows[@]}" | sort
exit $failed
