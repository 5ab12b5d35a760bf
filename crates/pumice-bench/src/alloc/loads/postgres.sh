# What the scripts behind this one share: PostgreSQL's programs, and a server of the database in the folder $2.
data=$2
for bin in /usr/lib/postgresql/*/bin; do
    [ -x "$bin/postgres" ] && PATH=$bin:$PATH
done
# PostgreSQL refuses to run as root.
as_user() {
    [ "$(id -u)" = 0 ] && exec setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups "$@"
    exec "$@"
}
start() {
    (as_user postgres -D "$data" -k "$data" -c listen_addresses= -c fsync=off -c autovacuum=off \
        -c dynamic_shared_memory_type=mmap -c work_mem=64MB) >/dev/null &
    server=$!
    trap 'stop; exit 1' TERM INT HUP
    until pg_isready -q -h "$data"; do
        kill -0 $server || exit 1
        sleep 0.01
    done
}
stop() {
    kill -INT $server
    wait $server
}
