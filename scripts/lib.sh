# Shared by the commands beside it: messages, packages, builds. Sourced, never run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
me=$(basename "$0")

say() { printf '%s: %s\n' "$me" "$*"; }
warn() { printf '%s: %s\n' "$me" "$*" >&2; }
die() { warn "$@"; exit 1; }

# The commit that figures name.
this_commit() { git rev-parse --short HEAD 2>/dev/null || echo unknown; }

# minutes SECONDS: with one digit behind the point.
minutes() { echo "$((($1 + 3) / 60)).$(((($1 + 3) % 60) / 6))"; }

# minutes_table FILE: what lines "NAME SECONDS_OF_BUILDING SECONDS_OF_RUNNING" add up to.
minutes_table() {
  local name building running
  while read -r name building running; do
    printf '%-16s %5s minutes' "$name" "$(minutes $((building + running)))"
    [ "$building" = 0 ] || printf ', %s of them building' "$(minutes "$building")"
    echo
  done <"$1"
}

# Prints the comment that opens the calling script: its manual.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# Compilers of this code take up to 1.5 GiB each.
jobs_default() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
  by_memory=$((${memory_kib:-3145728} / 1572864))
  echo $((by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores))
}
jobs=${MILLRACE_JOBS:-$(jobs_default)}

# Packages.

# Newer than a preset's build files: what CMake found there may be out of date.
packages_stamp=$root/build/packages.stamp

# packages_of GROUP: the names in one group of scripts/packages.
packages_of() {
  awk -v wanted="[$1]" '/^\[/ { on = ($1 == wanted) } /^[a-z0-9]/ && on { print $1 }' \
    "$root/scripts/packages"
}

# Whether a package is installed, or one that provides it.
is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ||
    dpkg-query -W -f='${db:Status-Status} ${Provides}\n' | awk -v wanted="$1" '
      $1 == "installed" { gsub(/\([^)]*\)|,/, " "); for (i = 2; i <= NF; i++) if ($i == wanted) found = 1 }
      END { exit !found }'
}

missing_of() {
  local group package
  for group; do
    for package in $(packages_of "$group"); do
      is_installed "$package" || echo "$package"
    done
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

apt() {
  as_root apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

# Runs a command up to three times, its output kept in the log.
persist() {
  local attempt
  for attempt in 1 2 3; do
    "$@" >>"$apt_log" 2>&1 </dev/null && return 0
    [ "$attempt" = 3 ] || { warn "attempt $attempt failed, trying again"; sleep $((attempt * 5)); }
  done
  return 1
}

# Refreshes the package lists, once per run of a command.
refresh_packages() {
  [ -z "${packages_refreshed:-}" ] || return 0
  packages_refreshed=1
  persist apt update || warn "could not refresh the package lists; going on with the old ones"
}

can_install() {
  command -v apt-get >/dev/null || return 1
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null
}

# install_packages GROUP...: installs what is missing of these groups; silent when nothing is.
install_packages() {
  command -v dpkg-query >/dev/null || {
    [ -n "${MILLRACE_NO_INSTALL:-}" ] && return 0
    die "not a Debian system: install what scripts/packages lists under $* its own way," \
      "then set MILLRACE_NO_INSTALL=1"
  }
  local missing
  missing=$(missing_of "$@" | sort -u)
  [ -n "$missing" ] || return 0
  [ -z "${MILLRACE_NO_INSTALL:-}" ] || die "MILLRACE_NO_INSTALL is set and these are missing: "$missing
  can_install || die "these packages are missing, and installing them needs root or sudo: "$missing
  mkdir -p "$root/build"
  apt_log=$root/build/packages.log
  say "installing $(wc -w <<<"$missing") Debian packages: "$missing
  refresh_packages
  # shellcheck disable=SC2086
  if ! persist apt install --no-install-recommends $missing; then
    grep -E '^(E|W|Err|sudo)' "$apt_log" | tail -n 8 >&2 || true
    die "installing failed (is the machine online, and is this Debian 12?); see $apt_log"
  fi
  touch "$packages_stamp"
}

# install_optional GROUP...: as above, one by one; says what could not be had and goes on.
install_optional() {
  command -v dpkg-query >/dev/null || return 0
  local package missing
  missing=$(missing_of "$@" | sort -u)
  [ -n "$missing" ] && [ -z "${MILLRACE_NO_INSTALL:-}" ] || return 0
  can_install || { warn "skipped, needs root or sudo: "$missing; return 0; }
  mkdir -p "$root/build"
  apt_log=$root/build/packages.log
  say "installing optional Debian packages: "$missing
  refresh_packages
  for package in $missing; do
    if apt install --no-install-recommends "$package" >>"$apt_log" 2>&1 </dev/null; then
      touch "$packages_stamp"
    else
      warn "skipped: $package could not be installed (see $apt_log)"
    fi
  done
}

# Builds.

# Shortens ninja's output: one line at the start and at every tenth, all that compilers say, nothing
# when there is nothing to do.
progress_of() {
  awk -v what="$1" -v jobs="$jobs" '
    /^\[0\/|^ninja: (no work|Entering)|^-- (Configuring|Generating|Build files)/ { next }
    /^\[[0-9]+\/[0-9]+\] / {
      split(substr($1, 2), step, /[\/\]]/)
      if (!started++)
        print what ": " step[2] " steps, " jobs " at a time"
      tenth = int(10 * step[1] / step[2])
      if (tenth > told && step[2] >= 40 && tenth < 10)
        print "  " $1
      told = tenth
      fflush()
      next
    }
    { print; fflush() }
    END { exit !started }'
}

# build_preset PRESET [TARGET...]: configures where needed, builds, says how long it took.
# Silent when there is nothing to do.
build_preset() {
  local preset=$1 dir=build/$1 started=$SECONDS status
  shift
  [ $# -gt 0 ] || set -- all
  configure_preset "$preset"
  status=0
  cmake --build "$dir" -j "$jobs" --target "$@" 2>&1 | progress_of "$me: building $preset" ||
    status=("${PIPESTATUS[@]}")
  [ "${status[0]}" = 0 ] || die "building $preset failed"
  [ "${status[1]:-0}" != 0 ] || say "built $preset in $((SECONDS - started)) s"
}

configure_preset() {
  local preset=$1 dir=build/$1
  if [ -e "$dir/build.ninja" ] && [ ! "$dir/build.ninja" -ot CMakePresets.json ] &&
    [ ! "$dir/build.ninja" -ot "$packages_stamp" ]; then
    return 0
  fi
  mkdir -p "$dir"
  say "configuring $preset"
  if ! cmake --preset "$preset" ${MILLRACE_UNITY:+"-DMILLRACE_UNITY=$MILLRACE_UNITY"} >"$dir/configure.log" 2>&1; then
    tail -n 30 "$dir/configure.log" >&2
    die "configuring $preset failed; see $dir/configure.log"
  fi
  touch "$dir/build.ninja"
}
