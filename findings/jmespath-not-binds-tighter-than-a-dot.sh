#!/usr/bin/env bash
# jmespath 1.1.0: "not" binds tighter than a dot, so !a.b asks for b in (!a), which is null for any record. And a text
# compared with a number raises TypeError, which is no JMESPathError, where the specification says null. A wildcard
# behind a dot applies to one field only: a.*.b.c is null where *.b.c finds a value; values(a)[].b.c finds it.
# Seen: "!a.b: None", "!(a.b): True", "a.*.b.c: None", "*.b.c: [1]", "values(a)[].b.c: [1]", "a > `0`: TypeError".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jmespath==1.1.0
seen=$("$folder/venv/bin/python" - <<'PYTHON'
import jmespath

for expression in ("!a.b", "!(a.b)"):
    print(f"{expression}: {jmespath.search(expression, {'a': {'b': None}})}")
nested = {"x": {"b": {"c": 1}}}
for expression, given in (("a.*.b.c", {"a": nested}), ("*.b.c", nested), ("values(a)[].b.c", {"a": nested})):
    print(f"{expression}: {jmespath.search(expression, given)}")
try:
    jmespath.search("a > `0`", {"a": "x"})
except jmespath.exceptions.JMESPathError:
    print("a > `0`: JMESPathError")
except TypeError:
    print("a > `0`: TypeError")
PYTHON
)
echo "jmespath 1.1.0: $seen"
expected='!a.b: None
!(a.b): True
a.*.b.c: None
*.b.c: [1]
values(a)[].b.c: [1]
a > `0`: TypeError'
test "$seen" = "$expected" || { echo "this has changed"; exit 1; }
