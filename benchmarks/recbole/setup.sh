#!/bin/sh
# The reference's own environment: RecBole 1.2.1 needs an older NumPy than we do, so it never fractions ours. Called again, it does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../../build/recbole-env}
pins=$here/requirements.txt
if cmp -s "$pins" "$target/installed.txt"; then
    exit 0
fi
"${PYTHON:-python3}" -m venv --clear "$target"
install="$target/bin/python -m pip install -qq --disable-pip-version-check --constraint $pins"
# torch first and by its exact version: anything else may pull gigabytes of other builds
$install torch==2.13.0
$install --requirement "$pins"
# Read last: an installation that was cut short is started again.
cp "$pins" "$target/installed.txt"
