#!/bin/sh
# Compile the .in files into locks that fit together: one resolution of everything first, then each lock within it.
# UV names the uv program. With UPGRADE=1 the newest versions are taken, else those in the present locks are kept.
set -eu
cd "$(dirname "$0")"
everything=$(mktemp)
trap 'rm -f "$everything"' EXIT
[ "${UPGRADE:-}" = 1 ] || cat pip.lock base.lock models.lock dev.lock real.lock >"$everything" 2>/dev/null || :

compile() {
    "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: \
        --no-emit-index-url --no-header --no-annotate --excludes torch.excluded "$@" >/dev/null
}

# Packages that base.lock holds already.
in_base() { sed -nE 's/^([a-z0-9][a-z0-9._-]*)==.*/--no-emit-package=\1/p' base.lock | sort -u; }

compile pip.in base.in models.in dev.in real.in --output-file "$everything"
rm -f pip.lock base.lock models.lock dev.lock real.lock
compile pip.in --constraints "$everything" --output-file pip.lock
compile base.in --excludes models.excluded --constraints "$everything" --output-file base.lock
# shellcheck disable=SC2046 # one word a package
compile base.in models.in --constraints "$everything" $(in_base) --output-file models.lock
# shellcheck disable=SC2046
compile base.in dev.in --excludes models.excluded --constraints "$everything" $(in_base) --output-file dev.lock
# shellcheck disable=SC2046
compile base.in real.in --excludes models.excluded --constraints "$everything" $(in_base) --output-file real.lock
