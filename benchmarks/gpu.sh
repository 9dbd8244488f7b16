#!/bin/sh
# All that is measured on a GPU, by one command, with nothing to download but the packages of the
# lock file: benchmarks/gpu.sh [FOLDER] [DEVICE]
#
# A dry run on a CPU, of some minutes:
# SHAPES=tiny CONTEXTS=20 TOKENS=8 DTYPE=float32 ARMS=plain,lookahead benchmarks/gpu.sh /tmp/out cpu
set -eu
cd "$(dirname "$0")/.."
out=${1:-gpu}
device=${2:-cuda}
dtype=${DTYPE:-bfloat16}
make .venv/.ready
python=.venv/bin/python
mkdir -p "$out"

# The embedded model, all ways to decode in one run. On a GPU its passes are bound by launches.
$python -m lookahead bench --device "$device" --dtype "$dtype" --max-new-tokens "${TOKENS:-128}" \
  --arms "${ARMS:-plain,compiled,prompt_lookup,assisted_early_exit,lookahead,lookahead:nodes=16,lookahead:nodes=64}" \
  --state session --profile --json "$out/bench.json" --plot "$out/bench.png"

# The cost of a pass on models of other sizes, with random weights.
for shape in ${SHAPES:-1b 8b 32b}; do
  $python benchmarks/pass_costs.py --shape "$shape" --device "$device" --dtype "$dtype" \
    --context "${CONTEXTS:-100,2000,8000}" --json "$out/costs-$shape.json"
done
echo "All figures are in $out."
