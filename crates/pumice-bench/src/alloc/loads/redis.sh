# A redis-server on a socket of its own, and redis-benchmark with small and with large values.
socket=$1/redis.sock
rm -f "$socket"
redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$1" &
server=$!
until redis-cli -s "$socket" ping >/dev/null 2>&1; do
    kill -0 $server || exit 1
    sleep 0.01
done
redis-benchmark -s "$socket" -q -r 10000 -P 8 -n "$2" -d 1000 -t set,get,lpush &&
    redis-benchmark -s "$socket" -q -r 100 -n $(($2 / 20)) -d 200000 -t set,get
status=$?
redis-cli -s "$socket" shutdown nosave
wait $server && exit $status
