#!/usr/bin/env bash
# Runs the npm `openai` client against the real server with the bundled model:
#
#   run.sh FLASHLANE_BINARY [WORK_DIR]
#
# Passes only if the client was installed as locked, every step held, and the server ended with exit
# code 0 on SIGTERM. Where npm can't be reached it fails and says so.
set -euo pipefail

fail() {
  echo "openai client test: $*" >&2
  exit 1
}

[[ $# -ge 1 ]] || fail "usage: run.sh FLASHLANE_BINARY [WORK_DIR]"
binary=$(realpath "$1")
[[ -x $binary ]] || fail "$binary is not an executable"
source=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
mkdir -p "${2:-.}"
work=$(mktemp -d "$(realpath "${2:-.}")/openai_client.XXXXXX")

server=
cleanup() {
  [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

command -v node >/dev/null || fail "node is not installed (18 or newer is needed)"
command -v npm >/dev/null || fail "npm is not installed"
node_major=$(node -p 'process.versions.node.split(".")[0]')
((node_major >= 18)) || fail "node $(node --version) is too old (18 or newer is needed)"

cp "$source"/package.json "$source"/package-lock.json "$source"/*.mjs "$work"
if ! (cd "$work" && npm ci --no-audit --no-fund --fetch-retries=2 >npm.log 2>&1); then
  cat "$work/npm.log" >&2
  fail "npm could not install the openai client (see above): is the package registry reachable?"
fi

"$binary" serve --model nano --host 127.0.0.1 --port 0 >"$work/stdout" 2>"$work/stderr" &
server=$!
url=
for ((i = 0; i < 600; ++i)); do
  url=$(sed -n 's/^listening on \(http:[^ ]*\)$/\1/p' "$work/stdout")
  [[ -z $url ]] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.2
done
if [[ -z $url ]]; then
  cat "$work/stderr" >&2
  fail "the server did not say 'listening on http://...' within 2 minutes"
fi
model=$(node -e "fetch('$url/v1/models').then(r => r.json()).then(l => console.log(l.data[0].id))")

if ! node "$work/openai_client.mjs" "$url" "$model"; then
  tail -n 30 "$work/stderr" >&2
  fail "a step failed; the server's last lines are above"
fi

kill -TERM "$server"
for ((i = 0; i < 100; ++i)); do
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
! kill -0 "$server" 2>/dev/null || fail "the server still runs 10 s after SIGTERM"
code=0
wait "$server" || code=$?
server=
((code == 0)) || fail "the server ended with exit code $code on SIGTERM, not 0"
echo "openai client test passed; the server ended with exit code 0"
