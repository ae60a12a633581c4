#!/usr/bin/env bash
# bench/store.sh BUILD_DIR [OPTION...]: runs bench_store. Called by scripts/bench store; see bench/README.md.
set -euo pipefail
build=$1
shift
commit=$(git -C "$(dirname "$0")" rev-parse --short HEAD 2>/dev/null || echo unknown)
exec "$build/bin/bench_store" --commit "$commit" "$@"
