#!/usr/bin/env bash
# What a GPU host should show, each part under a time limit of its own, and a short table last.
#
#   tests/gpu_check.sh [PART...]     without parts: all of them, the short ones first
#
# PYTHON: the interpreter (default: .venv/bin/python if it is there, else python3). RELEASE: what is measured (0.5.13).
# BUGGY: a release that has #27338 (0.5.12.post1). AGAINST: a recording of `python -m repro fidelity --record` from
# another host; for fidelity-all a folder of them, one for each runner and backend: without it, DRAWN cases (100) of each
# on RELEASE are recorded in OUT/fidelity-all for another host to compare with. All pairs run side by side. fidelity-all,
# pairs and ray-N are run only by name. OUT: a folder for the logs (out/gpu-check).
# Exit code: 0 if every part did what it should, 1 otherwise.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 3

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
RELEASE=${RELEASE:-0.5.13}
BUGGY=${BUGGY:-0.5.12.post1}
AGAINST=${AGAINST:-}
DRAWN=${DRAWN:-100}
OUT=${OUT:-out/gpu-check}
PARTS=(openings rounds-1 rounds-8 cold bench-flashinfer bench-triton next-case campaign campaign-alone workers-4 first-wrong sanitizer fidelity scripts tests)

mkdir -p "$OUT"
rows=()
failed=0

# part NAME SECONDS EXIT-CODE FIGURE COMMAND...: run it; FIGURE is a pattern whose last match in the output is shown.
part() {
  local name=$1 limit=$2 wanted=$3 figure=$4 start code shown
  shift 4
  printf '%s: %s\n' "$name" "$*"
  start=$(date +%s)
  timeout -k 10 "$limit" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  shown=$(grep -oE "$figure" "$OUT/$name.log" | tail -1)
  [ "$code" -eq "$wanted" ] || failed=1
  rows+=("$(printf '%-17s %4s (%s) %5ss  %s' "$name" "$code" "$wanted" "$(($(date +%s) - start))" "$shown")")
}

# fidelity_all TARGET: every runner and backend in a process of its own. Fails where one failed, or did not end in time.
fidelity_all() {
  local target=$1 folder=$OUT/fidelity-all pair how code worst=0
  declare -A jobs
  mkdir -p "$folder"
  while read -r pair; do
    how=(--runner "${pair%-*}" --backend "${pair#*-}" --drawn "$DRAWN" --record "$folder/$pair.npz")
    if [ -d "$AGAINST" ]; then
      [ -f "$AGAINST/$pair.npz" ] || continue
      how=(--against "$AGAINST/$pair.npz" --json "$folder/$pair.json" --out "$folder/$pair")
    fi
    timeout -k 10 570 "$PYTHON" -m repro fidelity --targets "$target" "${how[@]}" >"$folder/$pair.log" 2>&1 &
    jobs[$pair]=$!
  done < <("$PYTHON" -c 'from repro.cases.runner_facts import RUNNER_FACTS
print(*(f"{name}-{b}" for name, row in RUNNER_FACTS.items() if name != "toy" for b in row.backends), sep="\n")')
  for pair in "${!jobs[@]}"; do
    wait "${jobs[$pair]}"
    code=$?
    # 2: this runner is not in this release, or not on this engine, as the log says.
    case $code in 0 | 2) ;; *) worst=1 ;; esac
    echo "$pair: exit code $code: $(grep -E 'cases on|compared|error' "$folder/$pair.log" | tail -1)"
  done
  echo "fidelity-all: ${#jobs[@]} pairs, $worst"
  return $worst
}

# ray_beside_workers TARGET N: a campaign of 90 seconds with so many workers, and on so many slots of a cluster that is
# this host alone. Fails where one of them has trouble of its own; what it finds is none.
ray_beside_workers() {
  local target=$1 count=$2 place=$OUT/ray-$2 how code worst=0 both=""
  mkdir -p "$place"
  "$PYTHON" -m ray.scripts.scripts start --head --include-dashboard=false --disable-usage-stats >"$place/start.log" 2>&1 || return 3
  for how in "--workers $count" "--cluster auto --slots $count"; do
    # shellcheck disable=SC2086  # two options, or four
    "$PYTHON" -m fuzz run --target "$target" --backend flashinfer --minutes 1.5 --seed 5 --confirm 1 --shrink-runs 1 \
      $how --out "$place/${how:2:7}" >"$place/${how:2:7}.log" 2>&1
    code=$?
    [ $code -le 1 ] || worst=$code
    both+="${how:2:7} $(grep -oE '[0-9,]+ cases \([0-9,]+ judged\) on [0-9]+ setups' "$place/${how:2:7}.log" | tail -1); "
  done
  "$PYTHON" -m ray.scripts.scripts stop >"$place/stop.log" 2>&1
  echo "ray: $both"
  return "$worst"
}

run() {
  local target=$RELEASE/cuda
  case $1 in
    bench-flashinfer | bench-triton)
      part "$1" 200 0 'bare / whole = [0-9.]+|small setup: [0-9.]+ cases/s' "$PYTHON" -m fuzz bench --target "$target" \
        --backend "${1#bench-}" --mix small --cases 800 --out "$OUT/$1"
      ;;
    workers-[1-9]*) # on as many GPUs as CUDA_VISIBLE_DEVICES has, in turn
      part "$1" 300 0 '[0-9]+ workers: bare / whole = [0-9.]+|[0-9]+ workers are [0-9.]+ times as fast as one' \
        "$PYTHON" -m fuzz bench --target "$target" --backend flashinfer --mix small --cases 800 --cases-per-setup 50 \
        --workers "${1#workers-}" --out "$OUT/$1"
      ;;
    openings) # of processes that have served other setups; the first case's kernels are compiled before
      part "$1" 150 0 'whole +[0-9.]+ +[0-9.]+' "$PYTHON" -m tests.tools.openings "$target" 24 "$OUT/$1" \
        --backend flashinfer
      ;;
    rounds-1)
      part "$1" 150 0 'random mix: [0-9.]+ cases/s' "$PYTHON" -m fuzz bench --target "$target" --backend flashinfer \
        --mix rounds --seconds 60 --out "$OUT/$1"
      ;;
    rounds-[1-9]*) # on as many GPUs as CUDA_VISIBLE_DEVICES has, in turn
      part "$1" 200 0 'random mix: [0-9.]+ cases/s.*' "$PYTHON" -m fuzz bench --target "$target" --backend flashinfer \
        --mix rounds --seconds 90 --workers "${1#rounds-}" --only-together --out "$OUT/$1"
      ;;
    cold) # #27338 from nothing, and no kernel compiled
      part "$1" 240 1 'failed [0-9]+ of [0-9]+ runs.*|stopped: .*' env EAGLEEYE_KERNELS="$(mktemp -d)" \
        "$PYTHON" -m fuzz run --target "$BUGGY/cuda" --backend flashinfer --stop-at-first --out "$OUT/$1"
      ;;
    next-case)
      part "$1" 200 0 'seconds_to_next_case" value="[0-9.]+' sh -c "'$PYTHON' -m pytest -m cuda tests/runners/conformance/test_cuda.py \
        -k starts_soon_after_a_crash --target $target -p no:cacheprovider --junitxml='$OUT/next-case.xml'; \
        code=\$?; cat '$OUT/next-case.xml'; exit \$code"
      ;;
    campaign | campaign-alone)
      local alone=()
      [ "$1" = campaign ] || alone=(--standbys 0)
      part "$1" 120 0 '[0-9,]+ cases \([0-9,]+ judged\) on [0-9]+ setups' "$PYTHON" -m fuzz run --target "$target" \
        --backend flashinfer --minutes 1 --out "$OUT/$1" "${alone[@]}"
      ;;
    first-wrong)
      part "$1" 150 1 'First wrong: .*|With every launch .*' "$PYTHON" -m repro run \
        repro/seeds/pr27338-illegal-access.json --target "$BUGGY/cuda"
      ;;
    sanitizer)
      part "$1" 400 1 'compute-sanitizer: .*' "$PYTHON" -m repro run repro/seeds/pr27338-row-too-narrow.json \
        --target "$BUGGY/cuda" --sanitizer memcheck --log "$OUT/sanitizer-worker.log"
      ;;
    fidelity)
      if [ -f "$AGAINST" ]; then
        part "$1" 400 0 '.*' "$PYTHON" -m repro fidelity --targets "$target" --against "$AGAINST" \
          --json "$OUT/fidelity.json" --out "$OUT/fidelity"
      else
        rows+=("$(printf '%-17s not run: AGAINST names no recording' "$1")")
      fi
      ;;
    fidelity-all)
      export -f fidelity_all
      export PYTHON OUT AGAINST DRAWN
      part "$1" 595 0 'fidelity-all: .*' bash -c "fidelity_all '$target'"
      cat "$OUT/$1.log"
      ;;
    pairs) # what opening costs, every runner and backend, as many at once as there are cores for
      part "$1" 590 0 'pairs: .*' "$PYTHON" -m tests.tools.gpu_pairs "$target" 8 400 "$OUT/$1"
      cat "$OUT/$1.log"
      ;;
    ray-[1-9]*) # with the extra `ray`
      export -f ray_beside_workers
      export PYTHON OUT
      part "$1" 420 0 'ray: .*' bash -c "ray_beside_workers '$target' '${1#ray-}'"
      ;;
    scripts) # handed over only if they show the bug where it is and pass where it is not
      part "$1" 595 0 'scripts: .*' bash -c "mkdir -p '$OUT/scripts'; worst=0
        for pair in pr23037-stale-padding:0.5.10.post1:0.5.11 pr26292-decode:$BUGGY:$RELEASE \
          pr26292-draft-extend:$BUGGY:$RELEASE draft-extend-reads-twice:$BUGGY:$RELEASE; do
          IFS=: read -r seed bad good <<<\"\$pair\"
          '$PYTHON' -m repro script repro/seeds/\$seed.json --target \$bad/cuda --fixed \$good/cuda \
            --out '$OUT/scripts/'\$seed.py || { worst=1; echo \"\$seed: not handed over\"; }
        done; echo \"scripts: \$(ls '$OUT/scripts' | wc -l) of 4 handed over\"; exit \$worst"
      ;;
    tests)
      part "$1" 560 0 '[0-9]+ passed.*|[0-9]+ failed.*' "$PYTHON" -m pytest -m cuda --target "$target" -n 4 \
        --workers-per-gpu 4 -rfs -p no:cacheprovider
      ;;
    *)
      echo "gpu_check: there is no part $1; there are ${PARTS[*]}" >&2
      exit 3
      ;;
  esac
}

[ $# -gt 0 ] || set -- "${PARTS[@]}"
for name in "$@"; do run "$name"; done
echo
printf '%-17s %4s %s %6s  %s\n' part exit '(wanted)' time figure
printf '%s\n' "${rows[@]}"
exit $failed
