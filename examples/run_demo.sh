#!/usr/bin/env bash
# examples/run_demo.sh BUILD_DIR [--quick] [--keep]: the demonstration on real input.
#
# Starts three providers in their own processes (two in memory, one RocksDB). Trains a perceptron on
# handwritten digits and stores it after every epoch while training continues. Starts a second model
# from its first layers. Restarts the RocksDB provider (in order, then after kill -9), and loads the
# model back bit for bit. Trains another model with a checkpoint at every iteration, kills it in the
# middle of a save, and continues from the newest checkpoint to the same weights. If PyTorch is
# installed, does the same saves with torch.save, and trains in Python: one trainer reads its batches
# through a working set that two data servers share, is killed in an epoch, and goes on at the very
# sample. Says at its end what it leaves out.
#
#   --quick  fewer epochs
#   --keep   leave the directory with its logs
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

build=
epochs=30
checkpoint_epochs=10
keep=
for argument; do
  case $argument in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --quick) epochs=6 checkpoint_epochs=4 ;;
    --keep) keep=1 ;;
    -*) die "no option $argument: --quick, --keep" ;;
    *) build=$argument ;;
  esac
done
[ -n "$build" ] || die "which build directory? build/release, say"
millrace=$build/bin/millrace
train_digits=$build/bin/train_digits
for program in "$millrace" "$train_digits"; do
  [ -x "$program" ] || die "$program is not built"
done

directory=$(mktemp -d "${TMPDIR:-/tmp}/millrace-demo-XXXXXX")
config=$directory/demo.yaml
summary=$directory/summary.txt
declare -A pid_of=()

# Ends every started process by its id, and prints the logs if something failed.
finish() {
  local status=$? node
  trap - EXIT
  for node in "${!pid_of[@]}"; do
    kill -TERM "${pid_of[$node]}" 2>/dev/null || true
  done
  for node in "${!pid_of[@]}"; do
    await_end "$node" || kill -KILL "${pid_of[$node]}" 2>/dev/null || true
  done
  if [ "$status" != 0 ]; then
    tail -n 20 "$directory"/*.log >&2 2>/dev/null || true
    echo "demo: FAILED" >&2
  fi
  if [ -n "$keep" ]; then echo "kept: $directory"; else rm -rf "$directory"; fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# await SECONDS COMMAND...: waits until the command succeeds.
await() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.05
  done
}

ended() { ! kill -0 "$1" 2>/dev/null; }
await_end() { await 30 ended "${pid_of[$1]}"; }
is_ready() { ended "$2" || grep -q ready "$directory/$1.out"; }

start_node() {
  local node=$1
  : >"$directory/$node.out"
  "$millrace" serve -c "$config" --node "$node" >"$directory/$node.out" 2>>"$directory/$node.log" &
  pid_of[$node]=$!
  await 60 is_ready "$node" "${pid_of[$node]}" || die "$node did not get ready within 60 s"
  ! ended "${pid_of[$node]}" || die "$node ended at once"
  head -n 1 "$directory/$node.out"
}

# stop_node NODE SIGNAL STATUS: sends the signal; the process must end with this status.
stop_node() {
  local node=$1 signal=$2 wanted=$3 status=0
  kill "-$signal" "${pid_of[$node]}"
  [ "$signal" = KILL ] || await_end "$node" || die "$node did not end within 30 s of SIG$signal"
  wait "${pid_of[$node]}" 2>/dev/null || status=$?
  unset "pid_of[$node]"
  [ "$status" = "$wanted" ] || die "$node ended with $status after SIG$signal, not with $wanted"
}

verify() {
  "$train_digits" verify -c "$config" --expect "$directory/weights.bin" --summary "$summary"
}

sed "s|/tmp/millrace-demo|$directory|g" "$here/configs/demo.yaml" >"$config"
"$millrace" config check -c "$config" >/dev/null || die "the configuration does not pass"

say "three providers, each in a process of its own"
for node in mem0 mem1 disk; do
  start_node "$node"
done

say "training, storing meanwhile"
"$train_digits" train -c "$config" --out "$directory/weights.bin" --epochs "$epochs" \
  --summary "$summary" --report "$directory/report.json"

say "what the providers hold now"
"$millrace" status -c "$config"
for group in fast kept; do
  "$millrace" models ls -c "$config" --group "$group" >"$directory/models-$group.txt"
  head -n 8 "$directory/models-$group.txt"
  lines=$(wc -l <"$directory/models-$group.txt")
  [ "$lines" -le 8 ] || echo "... and $((lines - 8)) more"
done

say "the RocksDB provider is stopped and started again"
stop_node disk TERM 0
start_node disk
echo "after SIGTERM and a restart:" >>"$summary"
verify

say "the RocksDB provider is killed and started again"
stop_node disk KILL 137
start_node disk
echo "after kill -9 and a restart:" >>"$summary"
verify

say "a checkpoint at every iteration, kill -9 while one is being saved"
checkpoint() {
  "$train_digits" checkpoint -c "$config" --epochs "$checkpoint_epochs" --summary "$summary" "$@"
}
checkpoint --job digits/undisturbed --out "$directory/undisturbed.bin"
status=0
checkpoint --job digits/killed --killed-at 201 --out "$directory/killed.bin" || status=$?
[ "$status" = 137 ] || die "the trainer was to be killed and ended with $status"
checkpoint --job digits/killed --out "$directory/killed.bin"
grep -q '^digits/killed: goes on after iteration [1-9]' "$summary" ||
  die "the killed job began anew instead of going on from its newest checkpoint"
cmp "$directory/undisturbed.bin" "$directory/killed.bin" ||
  die "the killed job came to other weights than the undisturbed one"
echo "killed while a checkpoint was being saved and started again: the same weights bit for bit" |
  tee -a "$summary"

say "the same saves with torch.save"
if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  mkdir "$directory/torch"
  /usr/bin/python3 "$here/train_digits/torch_save_peer.py" --report "$directory/report.json" \
    --into "$directory/torch" | tee -a "$summary"
else
  echo "skipped: torch.save: PyTorch is not installed" | tee -a "$summary"
fi

# Where the build has the package for Python.
python() { PYTHONPATH=$build/python MILLRACE_ADDRESS=unix:$directory/disk.sock /usr/bin/python3 "$@"; }
say "Python"
if [ ! -e "$build/python/millrace/_native.abi3.so" ]; then
  echo "skipped: Python: this build has no package for it (libpython3-dev)" | tee -a "$summary"
elif python -c 'import torch' 2>/dev/null; then
  python "$here/python/train_resnet.py" --small --steps 6
  python "$here/python/train_resnet.py" --small --steps 12 | tee "$directory/python.out"
  grep -q '^goes on after step 6$' "$directory/python.out" || die "the trainer in Python began anew"
  echo "a trainer in PyTorch, ended and started again: $(tail -n 1 "$directory/python.out")" >>"$summary"

  say "training data in the memory of two data servers"
  digits() {
    python "$here/python/train_digits.py" --folder "$directory" --servers 2 --epochs 3 "$@"
  }
  digits --name digits/whole >"$directory/whole.out"
  status=0
  digits --name digits/cut --kill-at 40 >"$directory/cut.out" || status=$?
  [ "$status" = 137 ] || die "the trainer in Python was to be killed and ended with $status"
  digits --name digits/cut >"$directory/resumed.out"
  "$millrace" data describe digits/cut -c "$config"
  grep -q '^goes on after step 40$' "$directory/resumed.out" || die "the trainer in Python began anew"
  grep -q '; 2 data servers' "$directory/resumed.out" || die "the samples are not on two data servers"
  cmp <(grep '^step' "$directory/whole.out") <(cat "$directory/"{cut,resumed}.out | grep '^step') ||
    die "the killed trainer in Python came to other losses than the undisturbed one"
  echo "a trainer whose samples two data servers have, killed in an epoch and started again: the same losses" |
    tee -a "$summary"
elif python -c 'import numpy' 2>/dev/null; then
  python "$here/python/arrays.py" --group kept | tee -a "$summary"
else
  echo "skipped: Python: neither PyTorch nor NumPy is installed" | tee -a "$summary"
fi

say "stopping"
for node in mem0 mem1 disk; do
  stop_node "$node" TERM 0
done

say "summary"
cat "$summary"

say "what this leaves out"
echo "the C interface: examples/embedded_c, docs/c-api.md; more of Python: docs/python.md"
echo "several hosts, GPUs: docs/configuration.md (Several hosts); flushing checkpoints to files: docs/flush.md"
