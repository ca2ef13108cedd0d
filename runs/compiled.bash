# Sourced after prepare.bash: has the policy and the simulator compiled from this checkout, outside of it and once for each
# state of the source, and lets Python load that.
compiled_headway() {
    local cache=${HEADWAY_CACHE:-$HOME/.cache/headway} state built work
    state=$(find setup.py pyproject.toml headway -name '*.py' -o -name '*.toml' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
    built=$cache/compiled-$state
    if [[ ! -d $built ]]; then
        mkdir -p "$cache"
        rm -rf "$cache"/compiled-*
        work=$(mktemp -d)
        cp -r setup.py pyproject.toml README.md LICENSE headway "$work"
        HEADWAY_COMPILE=1 "$PY" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/built" "$work" >&2
        mv "$work/built" "$built"
        rm -rf "$work"
    fi
    echo "$built"
}
PYTHONPATH=$(compiled_headway)
export PYTHONPATH
