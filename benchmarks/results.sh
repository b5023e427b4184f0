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
# The paper's own sets, rebuilt from the published test rows. Their order is their time, and rows that were
# published as validation and test rows say where the parts begin.
published="--time order_rank --tests published=split:test,tuned=split:valid --borders tuned,published"
prepare paper-music deps_paper_reconstructed/Amazon_Digital_Music.csv.gz "$published"
prepare paper-beauty deps_paper_reconstructed/Amazon_Beauty.csv.gz "$published"
prepare paper-mind deps_paper_reconstructed/mind_small.csv.gz "$published"

music="paper: Music=$work/paper-music"
small="MovieTweetings=$work/movietweetings"
bench() { unskew bench "$@" --out "$results"; }

# Every model is trained to the end: no limit of epochs. First one seed of everything, the small sets first.
for suite in main views parts frequency agnostic clip; do
    bench "$suite" "$music" --seeds 1 "$@"
done
bench main "$small" --seeds 1 "$@"
bench ground-truth --seeds 1 "$@"
bench rolling "$small" "$@"
bench main "Digital Music 2018=$work/music" --seeds 1 "$@"
bench main "Beauty=$work/beauty" --seeds 1 "$@"
bench main "paper: MIND=$work/paper-mind" --seeds 1 "$@"
bench main "paper: Beauty=$work/paper-beauty" --seeds 1 --sample 1000 "$@"
bench --suite benchmarks/tuned.py "$small" --seeds 1 "$@"
bench industry --seeds 1 --sample 1000 "$@"
for suite in main views parts frequency agnostic clip; do
    bench "$suite" "$music" --seeds 3 "$@"
done
unskew report results/bench --html docs/report.html --summary docs/results.md
