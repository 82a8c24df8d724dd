#!/bin/sh
# Try a wheel outside the repository with every supported Python that is found: a clean environment, the version, one plan.
# Usage: sh scripts/try_wheel.sh dist/fleetgrad-*.whl
set -eu
[ $# -eq 1 ] && [ -f "$1" ] || { echo "usage: $0 WHEEL (one file)" >&2; exit 2; }
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tried=""
for version in 3.11 3.12 3.13; do
    python=""
    for found in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        if "$found" -c "import sys, venv; sys.exit(sys.version_info[:2] != tuple(map(int, '$version'.split('.'))))" \
            >/dev/null 2>&1; then
            python=$found
            break
        fi
    done
    [ -n "$python" ] || { echo "python$version: not found, not tried"; continue; }
    "$python" -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    (
        cd "$folder"
        unset PYTHONPATH
        "$version/bin/fleetgrad" --version
        "$version/bin/fleetgrad" profiles >profiles.txt
        "$version/bin/fleetgrad" plan --workload azure --rate 100 --profile h100-80gb --ttft-p99-ms 500 \
            --tpot-p99-ms 60 --model kimura --out "plan-$version" >"plan-$version.txt"
        "$version/bin/fleetgrad" export "plan-$version/plan.json" --format kubernetes >/dev/null
        test -s "plan-$version/report.html"
        head -n 1 "plan-$version.txt"
    )
    echo "python$version: works ($python)"
    tried="$tried $version"
done
[ -n "$tried" ] || { echo "no Python 3.11, 3.12 or 3.13 found" >&2; exit 1; }
