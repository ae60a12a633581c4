#!/usr/bin/env bash
# symbols.sh LIBRARY LIST: compares what the library exports with the list. To add a function, add its line.
set -eu
diff -u "$2" <(nm -D --defined-only "$1" | sed 's/.* //; s/@.*//' | LC_ALL=C sort)
