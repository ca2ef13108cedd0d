# Sourced after prepare.bash: compiles the policy and the simulator of this checkout, outside of it and once for each state
# of the source, and makes Python load the compiled modules. The last few builds are kept: other checkouts may use them.
compiled_headway() {
    local cache=${HEADWAY_CACHE:-$HOME/.cache/headway} state built work
    state=$(find setup.py pyproject.toml headway -name '*.py' -o -name '*.toml' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
    built=$cache/compiled-$state
    if [[ ! -d $built ]]; then
        mkdir -p "$cache"
        find "$cache" -maxdepth 1 -name 'compiled-*' -printf '%T@ %p\n' | sort -rn | tail -n +8 | cut -d' ' -f2- | xargs -r rm -rf
        work=$(mktemp -d)
        cp -r setup.py pyproject.toml README.md LICENSE headway "$work"
        HEADWAY_COMPILE=1 "$PY" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
            --target "$work/built" "$work" >&2
        mv "$work/built" "$built"
        rm -rf "$work"
    fi
    echo "$built"
}
# `python -m` would put the checkout, with its headway as source, before PYTHONPATH: PYTHONSAFEPATH prevents that.
PYTHONPATH=$(compiled_headway):$PWD
PYTHONSAFEPATH=1
export PYTHONPATH PYTHONSAFEPATH
