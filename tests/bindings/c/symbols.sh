#!/usr/bin/env bash
# symbols.sh LIBRARY LIST: compares what the library exports with the list. To add a function, add its line.
# The name of the version is a symbol of the kind A with some linkers.
set -eu
diff -u "$2" <(nm -D --defined-only "$1" | sed -n 's/@.*//; s/^[^ ]* [^A] //p' | LC_ALL=C sort)
