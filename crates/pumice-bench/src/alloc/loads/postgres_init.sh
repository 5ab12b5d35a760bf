# Makes a database with 200,000 accounts.
(as_user initdb -D "$data" -U pumice -A trust --locale=C -E UTF8 --no-sync) || exit 1
start
pgbench -h "$data" -U pumice -q -i -s 2 postgres
status=$?
stop && exit $status
