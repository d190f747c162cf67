#!/bin/sh
# python.sh: print an interpreter of a version that pyproject.toml names: $PYTHON if it is set, else python3, else the
# newest of python3.14, python3.13 … on PATH, else the newest that uv has.
set -eu
supported=' ' newest_first=''
for version in $(sed -n 's/.*Python :: \(3\.[0-9]*\)".*/\1/p' "$(dirname "$0")/../pyproject.toml"); do
  supported="$supported$version " newest_first="$version $newest_first"
done

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

named=''
for version in $newest_first; do named="$named python$version"; done
for python in ${PYTHON:-python3 $named}; do
  case $supported in *" $(version_of "$python") "*) echo "$python" && exit ;; esac
done
for version in $newest_first; do
  test -n "${PYTHON:-}" || ! uv python find --managed-python "$version" 2>/dev/null || exit 0
done
echo "${PYTHON:-python3} is Python $(version_of "${PYTHON:-python3}" || echo '(not found)'), but one of${supported% } is needed:" \
  "install Python ${newest_first%% *}, or name another one with PYTHON=…" >&2
exit 1
