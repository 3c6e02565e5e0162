#!/bin/sh
# Makes the secrets of compose.yaml in the directory secrets/, once.
set -eu
umask 022 # the users of the containers read them; here the directory keeps others out
cd "$(dirname "$0")"
mkdir -m 0700 secrets || { echo "remove $PWD/secrets to have new secrets, then start the services anew" >&2; exit 1; }
cd secrets

secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$1"; }
secret bridge_password
secret app_password
secret valkey_password

# docs/security.md has permissions for producers, workers and operators.
cat >nats.conf <<END
authorization {
  users: [
    {user: bridge, password: "$(cat bridge_password)"}
    {user: app, password: "$(cat app_password)"}
  ]
}
END

cat >valkey.conf <<END
requirepass $(cat valkey_password)
dir /data
appendonly yes
maxmemory-policy noeviction
END
