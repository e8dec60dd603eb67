#!/bin/sh
# Make the passwords and tokens of docker-compose.yml, each once: sh deploy/compose/make-secrets.sh [FOLDER]
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
cd "$folder"

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
digest() { printf %s "$1" | sha256sum | cut -d ' ' -f 1; }

# Containers run as other users, and read these files through mounts. The folder keeps them from users of this machine.
keep() {
    test -e "$1" && return
    cat > "$1.new"
    chmod 644 "$1.new"
    mv "$1.new" "$1"
}

random | keep admin-token
random | keep metrics-token
random | keep grafana-password
keep admin-tokens <<END
admin admin sha256:$(digest "$(cat admin-token)")
prometheus read sha256:$(digest "$(cat metrics-token)")
END

# Redis' file last: it has the passwords of both, so a run that was cut off makes all three again.
if ! test -e redis.conf; then
    rm -f gateway.env sidecar.env
    gateway=$(random) sidecar=$(random)
    keep gateway.env <<END
WARMROUTE_REDIS__PASSWORD=$gateway
WARMROUTE_AUTH__ISOLATION_SECRET=$(random)
END
    keep sidecar.env <<END
WARMROUTE_REDIS__USERNAME=sidecar
WARMROUTE_REDIS__PASSWORD=$sidecar
END
    keep redis.conf <<END
user default on >$gateway ~* &* +@all
user sidecar on >$sidecar ~warmroute:{default}:worker:* +set +del +ping +client|setname
END
fi
