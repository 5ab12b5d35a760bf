# A server, two clients that change accounts, and two that sort and group them.
cat >"$1/sort.sql" <<END
select count(*) from (select filler, abalance from pgbench_accounts order by md5(aid::text) limit 100000) sorted;
select max(balance) from (select aid % 20011 as part, sum(abalance) as balance from pgbench_accounts group by 1) parts;
END
start
pgbench -h "$data" -U pumice -n --random-seed=1 -c 2 -t $(($3 * 20)) -b simple-update postgres &&
    pgbench -h "$data" -U pumice -n -c 2 -t $((($3 + 9) / 10)) -f "$1/sort.sql" postgres
status=$?
stop && exit $status
