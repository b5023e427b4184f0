#!/bin/sh
# RecTools' own environment: it needs an older NumPy than we do. Called again, it does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/../../build/rectools-env}
pins=$here/requirements.txt
if cmp -s "$pins" "$target/installed.txt"; then
    exit 0
fi
"${PYTHON:-python3}" -m venv --clear "$target"
"$target/bin/python" -m pip install -qq --disable-pip-version-check --requirement "$pins"
# Read last: an installation that was cut short is started again.
cp "$pins" "$target/installed.txt"
