# One process without a server groups, joins and sorts.
answer=$(
    cat <<END | (as_user postgres --single -D "$data" -c work_mem=256MB -c fsync=off postgres)
create temp table t as select i, (i * 7919) % 100003 k, md5(i::text) s from generate_series(1, $3::bigint) i;
select count(*), sum(c) from (select k, count(*) c, max(s) from t group by k) x;
select s from t order by s offset $(($3 / 2)) limit 1;
select count(*) from t a join t b on a.i = b.i + 1;
END
) || exit 1
case $answer in
*"sum = \"$3\""*"count = \"$(($3 - 1))\""*) exit 0 ;;
esac
echo "a wrong answer" >&2
exit 1
