# Subshells of a shell that holds, and then copies, a string of some size.
printf -v large '%3000000s' x
for ((i = 0; i < $1; i++)); do
    (
        copy=$large$i
        ((${#copy} > 3000000))
    ) || exit 1
    small=$(echo $i)
    [[ $small == "$i" ]] || exit 1
done
