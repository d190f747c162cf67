#!/bin/sh
# install.sh VENV LOCK [PROJECT…]: make the virtual environment VENV and install what LOCK pins, verified by hash, and the
# projects, editable.
# uv does it in seconds. It is taken from PATH, else from its own lock; where neither works, pip takes some minutes.
set -eu
venv=$1 lock=$2
shift 2
here=$(dirname "$0")/..
python=$venv/bin/python
pip="$python -m pip --disable-pip-version-check"
packages=$(grep -c '^[a-z].*==' "$lock")
echo "installing $packages packages of $lock into $venv"
if test -t 1; then  # a dot a second, because neither venv nor uv says anything for a while
  (while sleep 1 && kill -0 $$ 2>/dev/null; do printf .; done) &
  trap "kill $!; echo" EXIT
fi

if ! PYTHON=$python "$here/tools/python.sh" >/dev/null 2>&1; then  # it is missing, or was made by another Python
  interpreter=$("$here/tools/python.sh")
  "$interpreter" -m venv --clear "$venv"
fi
uv=$(command -v uv || true)
for known in .venv/bin/uv build/uv/bin/uv; do
  test -n "$uv" || ! test -x "$here/$known" || uv=$here/$known
done
if test -z "$uv" && $pip install --quiet --only-binary :all: --require-hashes -r "$here/requirements-uv.lock"; then
  uv=$venv/bin/uv
fi

if test -n "$uv" && "$uv" pip install --quiet --python "$python" --require-hashes -r "$lock"; then
  install="$uv pip install --quiet --python $python"
else
  echo "without uv: pip installs them, which takes some minutes"
  install="$pip install --quiet"
  $install --require-hashes -r "$lock"
fi
for project; do
  $install --no-deps --no-build-isolation --editable "$project"
done
