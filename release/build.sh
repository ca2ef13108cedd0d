#!/usr/bin/env bash
# Builds what a release consists of from the files that git tracks, into dist/ or the folder that is named: the source
# distribution, the pure wheel, and the wheel with compiled policy, simulator and dispatcher for this Python and platform.
# `make dist` runs this.
#
#   release/build.sh [--pure] [FOLDER]      --pure: no compiled wheel, which takes minutes and needs a C compiler
#
# The same commit gives the same bytes, wherever the checkout is. The tools are those of requirements/dev.txt; nothing is
# downloaded. The wheels are built from the source distribution, so that it is known to be complete.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=1
if [[ ${1:-} == --pure ]]; then
    compile=0
    shift
fi
python=$PWD/.venv/bin/python out=$(realpath -m "${1:-dist}") work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

umask 022                                              # the archives have the modes of files
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)           # and their times
export SOURCE_DATE_EPOCH
# Compiled code would name the folders in which it and its tools are.
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$work=. -ffile-prefix-map=$PWD=." LDFLAGS="${LDFLAGS:-} -Wl,--strip-debug"

build() {
    "$python" -m build --no-isolation --outdir "$work/built" "$@" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
}

mkdir "$work/tracked" "$work/built"
git ls-files -z | tar --null --files-from=- -c | tar -x --no-same-permissions -C "$work/tracked"
build --sdist "$work/tracked"

# setuptools writes this machine's times and owners into a source distribution: pack it again without them.
sdist=$(basename "$work"/built/*.tar.gz)
tar -xzf "$work/built/$sdist" -C "$work"
tar --sort=name --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    -C "$work" -c "${sdist%.tar.gz}" | gzip -9n >"$work/built/$sdist"

build --wheel "$work/${sdist%.tar.gz}"
if ((compile)); then
    rm -rf "$work/${sdist%.tar.gz}/build"
    HEADWAY_COMPILE=1 build --wheel "$work/${sdist%.tar.gz}"
fi

mkdir -p "$out"
rm -f "$out"/headway-*
mv "$work"/built/* "$out"
(cd "$out" && sha256sum headway-*)
