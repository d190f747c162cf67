#!/usr/bin/env bash
# Sends a conversation over HTTP and recalls it: MEMORY_URL=http://127.0.0.1:8080 examples/curl.sh
set -euo pipefail
url=${MEMORY_URL:-http://127.0.0.1:8080}
chat=chat-$RANDOM$RANDOM user=ada-$RANDOM$RANDOM

call() { # METHOD PATH [JSON]; if the server needs a key, create one with `afterword keys create`
  curl --silent --show-error --fail-with-body --request "$1" "$url$2" --header 'Content-Type: application/json' \
    ${MEMORY_KEY:+--header "Authorization: Bearer $MEMORY_KEY"} ${3:+--data "$3"}
  echo
}

until_there() { # PATTERN METHOD PATH [JSON]: asks every second until the pattern is in the answer, for up to two minutes
  local pattern=$1 tries=0
  shift
  until call "$@" 2>&1 | grep --only-matching "$pattern"; do
    ((++tries < 120)) || { echo "no answer matched $pattern" >&2; exit 1; }
    sleep 1
  done
}

echo 'Send two messages:'
call POST /v1/messages "{\"messages\": [
  {\"id\": \"1\", \"conversation_id\": \"$chat\", \"user_id\": \"$user\", \"role\": \"user\",
   \"content\": \"I am allergic to peanuts, please remember that.\"},
  {\"id\": \"2\", \"conversation_id\": \"$chat\", \"user_id\": \"$user\", \"role\": \"assistant\",
   \"content\": \"Noted: no peanuts for you.\"}]}"

echo 'Close the episode, without waiting until it is idle:'
call POST "/v1/conversations/$chat/flush" '{}'

echo 'Recall it, once it is summarized:'
until_there '"content":"[^"]*"' POST /v1/recall "{\"query\": \"May I eat peanuts?\", \"user_id\": \"$user\"}"

echo 'Load what an agent needs to continue:'
call GET "/v1/conversations/$chat/context?max_tokens=500"
