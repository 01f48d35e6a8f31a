#!/usr/bin/env bash
# Installs the servers of tests/peers into target/peers: npm's lock file and pip's constraints say exactly which.
# Needs node 20.15 or later with npm, and python 3.10 or later with venv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
there=${EVERTURN_PEERS:-$here/../../target/peers}
mkdir -p "$there"
cp "$here/package.json" "$here/package-lock.json" "$there/"
(cd "$there" && npm ci --ignore-scripts --no-audit --no-fund --silent)
[ -x "$there/venv/bin/python" ] || python3 -m venv "$there/venv"
"$there/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check -c "$here/constraints.txt" 'litellm[proxy]==1.108.7'
