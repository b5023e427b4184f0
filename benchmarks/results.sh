#!/bin/sh
# Everything that docs/results.md and docs/report.html show: prepare the data sets, run the suites, write both.
#
#     benchmarks/results.sh DATA WORK [--workers 2 --budget 60 ...]     DATA: the raw data; WORK: a scratch folder
#
# It can be stopped at any time and goes on when it is called again. Data is never committed; results/bench is.
set -eu
raw=$1 work=$2
shift 2
results=results/bench
prepare() { [ -d "$work/$1" ] || unskew prepare "$raw/$2" --out "$work/$1" $3; }

# No filter: a k-core over the whole log looks ahead. Beauty was filtered by its publishers.
prepare movietweetings movietweetings_100k/ratings.csv.gz "--positive 7"
prepare beauty amazon_beauty_5core ""
prepare music amazon_digital_music_2018 ""
prepare retail online_retail ""
prepare mind mind_small_sample ""
# The paper's own sets, rebuilt from the published test rows. Their order is their time, and rows that were
# published as validation and test rows say where the parts begin.
published="--time order_rank --tests published=split:test,tuned=split:valid --borders tuned,published"
prepare paper-music deps_paper_reconstructed/Amazon_Digital_Music.csv.gz "$published"
prepare paper-beauty deps_paper_reconstructed/Amazon_Beauty.csv.gz "$published"
prepare paper-mind deps_paper_reconstructed/mind_small.csv.gz "$published"

music="paper: Music=$work/paper-music"
small="MovieTweetings=$work/movietweetings"
bench() { unskew bench "$@" --out "$results"; }

# First one seed of everything, the small sets first; then three seeds of what one would ship, and of the smallest.
for suite in main views parts frequency agnostic clip; do
    bench "$suite" "$music" --seeds 1 "$@"
done
bench main "$small" --seeds 1 "$@"
bench ground-truth --seeds 1 "$@"
bench rolling "$small" "$@"
ship() { bench --suite benchmarks/ship.py "$@"; }
large="lightsans.epochs=5 deps.unsupervised-epochs=1 deps.audience=30"
ship "Online Retail=$work/retail" --seeds 1 --at-most $large deps.epochs=1 "$@"
ship "MIND (sample)=$work/mind" --seeds 1 --at-most $large deps.epochs=2 "$@"
bench main "Digital Music 2018=$work/music" --seeds 1 --at-most epochs=10 audience=100 "$@"
bench main "Beauty=$work/beauty" --seeds 1 --at-most epochs=6 audience=60 "$@"
bench main "paper: MIND=$work/paper-mind" --seeds 1 "$@"
bench main "paper: Beauty=$work/paper-beauty" --seeds 1 --sample 1000 --at-most epochs=3 unsupervised-epochs=2 audience=30 "$@"
bench --suite benchmarks/tuned.py "$small" --seeds 1 --at-most epochs=10 audience=60 "$@"
ship "$small" --seeds 3 "$@"
ship "Beauty=$work/beauty" --seeds 3 --at-most epochs=6 audience=60 "$@"
ship "Digital Music 2018=$work/music" --seeds 3 --at-most epochs=10 audience=100 "$@"
ship "Online Retail=$work/retail" --seeds 3 --at-most $large deps.epochs=1 "$@"
ship "MIND (sample)=$work/mind" --seeds 3 --at-most $large deps.epochs=2 "$@"
bench industry --seeds 1 --sample 1000 --at-most epochs=3 unsupervised-epochs=2 audience=30 "$@"
for suite in main views parts frequency agnostic clip; do
    bench "$suite" "$music" --seeds 3 "$@"
done
unskew report "$results" --html docs/report.html --summary docs/results.md
python benchmarks/readme.py
