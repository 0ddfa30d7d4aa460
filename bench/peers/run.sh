#!/usr/bin/env bash
# Times the npm package node-llama-cpp on nano-q4_1.gguf beside `flashlane bench` on the same model at the
# same bits, in turns (A B B A), and prints the ratios. The package and its data stay in a build folder.
#
#   bench/peers/run.sh [--binary FLASHLANE] [--model DIR] [--peers DIR] [--work DIR] [--rounds N] [--quick]
#
# --peers: a folder with bench.mjs and nano-q4_1.gguf; default ../shared/peers beside the repository.
# --model: the nano with 4 bits and groups of 32, as `flashlane convert` writes it; default
# models/flash-next-nano-4bit beside --peers. --rounds: of A B B A for each pair of thread counts; default 5.
# --quick: one round of a short prompt and reply, to see that everything works; its figures mean nothing.
set -euo pipefail

version=3.22.1
prompt_tokens=512
decode_tokens=128
inner_rounds=3

fail() {
  echo "peers: $*" >&2
  exit 1
}

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
root=$(realpath "$here/../..")
binary=$root/build/release/flashlane
peers=$root/../shared/peers
work=$root/build/peers
model=
rounds=5
while (($# > 0)); do
  if [[ $1 == --quick ]]; then
    prompt_tokens=32 decode_tokens=8 inner_rounds=1 rounds=1
    shift
    continue
  fi
  (($# > 1)) || fail "$1 needs a value; see the top of $0"
  case $1 in
    --binary) binary=$2 ;;
    --model) model=$2 ;;
    --peers) peers=$2 ;;
    --work) work=$2 ;;
    --rounds) rounds=$2 ;;
    *) fail "'$1' is no option; they are --binary, --model, --peers, --work, --rounds, --quick" ;;
  esac
  shift 2
done

[[ $rounds =~ ^[1-9][0-9]*$ ]] || fail "--rounds is '$rounds'; it must be a whole number above 0"
[[ -x $binary ]] || fail "$binary is not an executable; build it or give --binary"
for file in bench.mjs nano-q4_1.gguf; do
  [[ -f $peers/$file ]] || fail "$peers holds no $file; give the folder that does with --peers"
done
[[ -n $model ]] || model=$peers/../models/flash-next-nano-4bit
[[ -d $model ]] || fail "$model is no folder; give --model a checkpoint that 'flashlane convert' wrote"
binary=$(realpath "$binary")
model=$(realpath "$model")
format=$("$binary" info --model "$model" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["format"])')
[[ $format == "affine 4-bit group 32" ]] ||
  fail "$model is $format; only 4 bits with groups of 32 compare with Q4_1 (5.0 bits a weight both)"
command -v node >/dev/null || fail "node is not installed (20 or newer is needed)"
command -v npm >/dev/null || fail "npm is not installed"
node_major=$(node -p 'process.versions.node.split(".")[0]')
((node_major >= 20)) || fail "node $(node --version) is too old (20 or newer is needed)"

mkdir -p "$work"
work=$(realpath "$work")
cp "$here/package.json" "$peers/bench.mjs" "$peers/nano-q4_1.gguf" "$work"
if [[ $(cat "$work/installed" 2>/dev/null) != "$version" ]]; then
  echo "peers: installing node-llama-cpp $version" >&2
  # Its optional packages for other machines and GPUs are a gigabyte; package.json names the one for CPUs.
  (cd "$work" && npm install --omit=optional --ignore-scripts --no-audit --no-fund --fetch-retries=2 >npm.log 2>&1) || {
    cat "$work/npm.log" >&2
    fail "npm could not install node-llama-cpp (see above): is the package registry reachable?"
  }
  echo "$version" >"$work/installed"
fi

ours() {
  printf '%q bench --model %q --prompt-file %q --prompt-tokens %s --decode-tokens %s --rows 1 --drafts off ' \
    "$binary" "$model" "$root/bench/prompts/code.txt" $prompt_tokens $decode_tokens
  printf -- '--rounds %s --threads %s --json' $inner_rounds "$1"
}
theirs() {
  printf 'node %q %q --prompt %s --tokens %s --rounds %s --threads %s' \
    "$work/bench.mjs" "$work/nano-q4_1.gguf" $prompt_tokens $decode_tokens $inner_rounds "$1"
}

# Each of our thread counts against each of theirs: its best one is what we have to beat.
for pair in "1 1" "2 2" "2 1"; do
  read -r our_threads their_threads <<<"$pair"
  echo "peers: $our_threads thread(s) of ours against $their_threads of theirs" >&2
  python3 -B "$here/../compare.py" --rounds "$rounds" --json --keep "$work/reports_${our_threads}_$their_threads.json" \
    --a "$(ours "$our_threads")" --b "$(theirs "$their_threads")" \
    --metric 'decode=cells[kind=decode].tokens_per_second|decode.tokensPerSecond.median' \
    --metric 'prompt=cells[kind=prompt].tokens_per_second|prompt.tokensPerSecond.median' \
    >"$work/compared_${our_threads}_$their_threads.json"
done
python3 -B "$here/summary.py" "$work"
